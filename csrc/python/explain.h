/* explain(): how a call of attention would be run. */
#ifndef ATTN_PYTHON_EXPLAIN_H
#define ATTN_PYTHON_EXPLAIN_H

#include "python/options.h"

/* The fields of attnpy.Explanation in their order. */
PyObject *py_explain(const attn_problem *, const py_options *);

extern PyMethodDef py_explain_methods[];

#endif
