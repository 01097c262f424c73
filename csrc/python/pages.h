/* page_table: keys and values that lie in pages. */
#ifndef ATTN_PYTHON_PAGES_H
#define ATTN_PYTHON_PAGES_H

#include "python/attention.h"

/* Checks the shapes of the table and the pages, and reads how many keys a batch has. */
int py_read_pages(const py_attention_arrays *, attn_problem *);

/* Adds the table's axes before the last to the batch shape, by NumPy's broadcasting. */
int py_broadcast_pages(const py_attention_arrays *, attn_problem *);

/* Adds the pages to the problem, once its batches are counted and its keys described. */
int py_set_pages(py_attention_arrays *, attn_problem *);

/* Bytes from page to page of an array of them. */
ptrdiff_t py_page_stride(const PyArrayObject *);

/* Copies the table's current numbers, each in its range, to where the core reads them. */
int py_update_pages(const py_attention_arrays *, const attn_problem *);

#endif
