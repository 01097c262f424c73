/* Objects as arrays: their dtypes, shapes and memory. */
#ifndef ATTN_PYTHON_ARRAYS_H
#define ATTN_PYTHON_ARRAYS_H

#include "python/binding.h"

#include "core/array.h"

PyObject *py_shape_of(PyArrayObject *);
/* Raises "name: expected ..., got <shape>"; `expected` may hold two %zd. */
int py_fail_shape(PyArrayObject *, const char *name, const char *expected, Py_ssize_t m,
                  Py_ssize_t n);
int py_fail_dtype(PyArrayObject *, const char *name, const char *expected);

/* Replaces the array by one of the given type, native and aligned, unless it is that. */
int py_cast_array(PyArrayObject **, int type);
/* Likewise by one that is contiguous, too, for the core to read in one line. */
int py_make_contiguous(PyArrayObject **, int type);
/* Likewise by a new one, which can be written to. */
int py_copy_as(PyArrayObject **, int type);
/* Likewise an operand of what has the type `type`. Where that is computed in float32, any
 * dtype that the core takes may stay. */
int py_cast_operand(PyArrayObject **, int type, attn_dtype *);

/* Does a type number stand for one of the storage dtypes, and which? */
bool py_storage_of(int type, attn_dtype *);
/* The storage dtype of a type number that stands for one. */
attn_dtype py_dtype_of(int type);
/* The type number that what has this one is computed in: of float or double. */
int py_real_type(int type);
/* The type number that the gradient of an array is returned in: its own, or `type` where that
 * is none that is computed with. */
int py_gradient_type(PyArrayObject *, int type);
/* The type number to which so many, 3 at most, promote, double for integers; an error names
 * the arguments. */
int py_common_type(int n, const int *types, const char *names);
/* Checks the dtype of what is computed with: a floating one, integers or booleans. */
int py_check_operand(PyArrayObject *, const char *name);

/* Length of the axis at a place counted from the right; a missing axis counts as 1. */
npy_intp py_axis_length(PyArrayObject *, int from_right);
/* Its stride, 0 where the axis is missing or has a length of at most 1. */
npy_intp py_axis_stride(PyArrayObject *, int from_right);
/* A (..., head, row, column) array for the core: its last `missing` of these three axes
 * are not there. Batch axes that it lacks broadcast. */
void py_describe(attn_array *, PyArrayObject *, int missing, int n_batch_axes);

bool py_may_overlap(PyArrayObject *, PyArrayObject *other); /* which may be NULL */

#endif
