/* Attributes of Python's objects, in the order of a group of arguments. */
#ifndef ATTN_PYTHON_ATTRIBUTES_H
#define ATTN_PYTHON_ATTRIBUTES_H

#include "python/binding.h"

/* clang-format off */
#define PY_ATTRIBUTES(NAME)                                                            \
    NAME(W_q) NAME(b_q) NAME(W_k) NAME(b_k) NAME(W_v) NAME(b_v) NAME(W_o) NAME(b_o)    \
    NAME(W_1) NAME(b_1) NAME(W_gate) NAME(b_gate) NAME(W_2) NAME(b_2)                  \
    NAME(activation) NAME(num_heads) NAME(num_kv_heads) NAME(q_norm) NAME(k_norm)      \
    NAME(weight) NAME(bias) NAME(eps) NAME(self_attention) NAME(feed_forward)          \
    NAME(norm_first) NAME(parallel) NAME(residual_scale) NAME(norm_1) NAME(norm_3)     \
    NAME(after_1) NAME(after_3) NAME(cross_attention) NAME(norm_2)        \
    NAME(_key) NAME(_value) NAME(_key_scale) NAME(_value_scale) NAME(_lengths)         \
    NAME(_parts) NAME(_prepared)
/* clang-format on */

#define PY_NUMBER_OF(name) PY_##name,
typedef enum {
    PY_NO_ATTRIBUTE,
    PY_ATTRIBUTES(PY_NUMBER_OF) PY_N_ATTRIBUTES
} py_attribute;
#undef PY_NUMBER_OF

/* The name of an attribute, borrowed. */
PyObject *py_name_of(py_attribute);
/* A new tuple of an object's attributes; None for none. */
PyObject *py_tuple_of(PyObject *object, const signed char *attributes, Py_ssize_t n);
/* Makes the names, once. */
int py_init_attributes(void);

#endif
