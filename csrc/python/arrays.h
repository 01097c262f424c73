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
/* The same, and contiguous, so that the core can read it in one sweep. */
int py_make_contiguous(PyArrayObject **, int type);
/* The same, but always a new and writable one. */
int py_copy_as(PyArrayObject **, int type);
/* The same for an operand of a result of type `type`. If that is computed in float32,
 * any dtype of the core may stay. */
int py_cast_operand(PyArrayObject **, int type, attn_dtype *);

/* Is a type number that of a storage dtype, and of which? */
bool py_storage_of(int type, attn_dtype *);
/* The storage dtype of a type number that has one. */
attn_dtype py_dtype_of(int type);
/* The type number of the computation for this one: that of float or double. */
int py_real_type(int type);
/* The type number of an array's gradient: its own, or `type` if nothing is computed in
 * its own. */
int py_gradient_type(PyArrayObject *, int type);
/* The type number to which up to 3 arrays promote, double for integers; an error names
 * the arguments. */
int py_common_type(int n, const int *types, const char *names);
/* Checks the dtype of an operand: floating, integer or boolean. */
int py_check_operand(PyArrayObject *, const char *name);

/* Length of the axis at a place counted from the right; a missing axis counts as 1. */
npy_intp py_axis_length(PyArrayObject *, int from_right);
/* Its stride, 0 if the axis is missing or has a length of at most 1. */
npy_intp py_axis_stride(PyArrayObject *, int from_right);
/* A (..., head, row, column) array for the core: it lacks the last `missing` of these
 * three axes. Batch axes that it lacks broadcast. */
void py_describe(attn_array *, PyArrayObject *, int missing, int n_batch_axes);

bool py_may_overlap(PyArrayObject *, PyArrayObject *other); /* which may be NULL */

#endif
