/* seq_offsets: where packed sequences begin and end. */
#ifndef ATTN_PYTHON_PACKED_H
#define ATTN_PYTHON_PACKED_H

#include "python/attention.h"

/* Converts it: an array for queries and keys alike, or a pair, None for what is not packed. */
int py_convert_starts(PyObject *, py_attention_arrays *);

bool py_is_packed(const py_attention_arrays *);
/* Is there an array for each of n sequences, where queries are packed? */
bool py_has_sequences(const py_attention_arrays *, npy_intp n);

/* Checks them, and the number of axes of query, key and value, and gives them to the problem,
 * which has one batch axis from then on. */
int py_set_starts(py_attention_arrays *, attn_problem *);

/* Checks that each of kv_lengths is at most the sequence's own. */
int py_check_lengths(const attn_problem *);

#endif
