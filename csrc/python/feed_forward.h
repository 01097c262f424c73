/* feed_forward(): a feed-forward network's products, in one call. */
#ifndef ATTN_PYTHON_FEED_FORWARD_H
#define ATTN_PYTHON_FEED_FORWARD_H

#include "python/binding.h"

#include "core/tasks.h"

#include <stdbool.h>

/* What feed_forward() returns for tokens after their norm. */
PyArrayObject *py_feed_forward(PyObject *x, PyObject *network, PyObject *residual,
                               bool mixed, attn_call *);
extern PyMethodDef py_feed_forward_methods[];

#endif
