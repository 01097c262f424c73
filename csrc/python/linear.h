/* linear(): the arrays of a product of rows with a matrix. */
#ifndef ATTN_PYTHON_LINEAR_H
#define ATTN_PYTHON_LINEAR_H

#include "python/binding.h"

#include "core/linear.h"
#include "python/weight.h"

/* The dtype of a product's result: the one to which x and the weight promote; or the
 * weight's; or the one in which that is computed. With the last two, rows of a wider x
 * may be rounded to the weight's. */
typedef enum { PY_PROMOTED, PY_NARROW, PY_WIDE } py_precision;

typedef struct {
    PyArrayObject *input, *bias, *times, *residual; /* owned, or NULL */
    py_weight weight;
} py_linear_arrays;

/* Checks and describes everything but the output; the output's type number. */
int py_set_linear(py_linear_arrays *, py_precision, attn_linear_problem *);
/* An array of rows, of all batches in a line. */
void py_describe_rows(attn_array *, PyArrayObject *, const attn_linear_problem *);
/* Allocates and describes the output. */
PyArrayObject *py_make_product(const py_linear_arrays *, int type,
                               attn_linear_problem *);
void py_release_linear(py_linear_arrays *);

/* What linear() takes; None for none. */
typedef struct {
    PyObject *x, *weight, *bias, *activation, *times, *residual;
} py_linear_objects;

/* The product, as linear() returns it. */
PyArrayObject *py_multiply(const py_linear_objects *, py_precision, attn_call *);
/* The same with this activation, whatever the objects have. */
PyArrayObject *py_multiply_to(const py_linear_objects *, attn_activation, py_precision,
                              attn_call *);
/* Another product of this one, whose x is no object's. */
PyArrayObject *py_multiply_twice(const py_linear_objects *, attn_activation,
                                 py_precision, py_linear_objects last,
                                 py_precision last_precision, attn_call *);
extern PyMethodDef py_linear_methods[];

#endif
