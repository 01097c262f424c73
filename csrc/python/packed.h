/* seq_offsets: where packed sequences begin and end. */
#ifndef ATTN_PYTHON_PACKED_H
#define ATTN_PYTHON_PACKED_H

#include "python/attention.h"

/* Converts it: one array for queries and keys, or a pair, with None for arrays that are
 * not packed. */
int py_convert_starts(PyObject *, py_attention_arrays *);

bool py_is_packed(const py_attention_arrays *);
/* Is there an array for each of n sequences, where queries are packed? */
bool py_has_sequences(const py_attention_arrays *, npy_intp n);

/* Checks them, and the number of axes of query, key and value, and adds them to the
 * problem, which then has one batch axis. */
int py_set_starts(py_attention_arrays *, attn_problem *);

/* Checks that each of kv_lengths is at most the sequence's own. */
int py_check_lengths(const attn_problem *);

#endif
