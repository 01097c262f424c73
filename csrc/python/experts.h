/* experts(): a mixture of experts, in one call. */
#ifndef ATTN_PYTHON_EXPERTS_H
#define ATTN_PYTHON_EXPERTS_H

#include "python/binding.h"

#include "core/tasks.h"

/* What experts() returns, with a float32 residual of that shape added to it, or None. */
PyObject *py_experts(PyObject *x, PyObject *group, PyObject *residual, attn_call *);
extern PyMethodDef py_experts_methods[];

#endif
