/* normalize(), and the norms of a layer's heads. */
#ifndef ATTN_PYTHON_NORM_H
#define ATTN_PYTHON_NORM_H

#include "python/binding.h"

#include "core/norm.h"

/* A norm's parameters: arrays owned, or none. */
typedef struct {
    PyArrayObject *weight, *bias;
    double eps;
    bool centre;
} py_norm;

/* Converts a group Norm, under this name. */
int py_convert_norm(PyObject *group, const char *name, py_norm *);
/* Checks it, once all is converted. */
int py_check_norm(const py_norm *, const char *name);
/* Converts its arrays for a result of this type, and describes it for rows of its size. */
int py_set_norm(py_norm *, int type, attn_norm_problem *);
void py_release_norm(py_norm *);
/* Rows of x + residual, if that is not None, normalized by a group Norm, as normalize() does;
 * x itself where the norm is None. */
PyObject *py_normalize(PyObject *x, PyObject *residual, PyObject *norm, attn_call *);
extern PyMethodDef py_norm_methods[];

#endif
