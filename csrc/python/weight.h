/* The matrix of a linear product: an array, or a PackedWeight or QuantizedWeight of Python. */
#ifndef ATTN_PYTHON_WEIGHT_H
#define ATTN_PYTHON_WEIGHT_H

#include "python/binding.h"

#include "core/linear.h"

enum { N_FACTORS = 5 }; /* scales and minimums, fine and coarse; values of codes */

typedef struct {
    PyObject *owner;      /* of all arrays below, owned; or NULL */
    PyArrayObject *array; /* owned; (K, M), the panels of a packed one, or codes */
    bool packed;          /* or quantised */
    npy_intp shape[2];    /* (K, M) of a packed one */
    bool is_quantized;
    int type;                          /* of what its codes stand for */
    PyArrayObject *factors[N_FACTORS]; /* owned, or NULL */
    attn_quantized quantized;
} py_weight;

/* What prepare() made of a packed one, if it is of its parts, takes the least time. */
int py_as_weight(PyObject *, const char *name, py_weight *);
void py_release_weight(py_weight *);
/* Its type number. */
int py_weight_type(const py_weight *);
bool py_is_matrix(const py_weight *);
/* K and M; for arrays that are not matrices, the lengths of the first and last axes. */
npy_intp py_weight_rows(const py_weight *);
npy_intp py_weight_columns(const py_weight *);
/* Converts it to a dtype that a product of this type can read. */
int py_cast_weight(py_weight *, int type, attn_dtype *);
/* Of a matrix that was cast. */
void py_describe_weight(const py_weight *, attn_linear_problem *);
extern PyMethodDef py_weight_methods[];

#endif
