/* rotate() and quantize_heads(), and what it shares with a layer's heads. */
#ifndef ATTN_PYTHON_ROTARY_H
#define ATTN_PYTHON_ROTARY_H

#include "python/binding.h"

#include "core/rotary.h"

/* Reads the sizes from an array (..., head, token, column), and sets no step. */
void py_read_heads(PyArrayObject *, attn_rotary_problem *);
/* Converts the cosines and sines for heads of this type. */
int py_convert_cos_sin(PyArrayObject **, int type);
/* Checks and describes the cosines and sines for the rows of such an array, x: they
 * broadcast. */
int py_set_cos_sin(PyArrayObject *cos_sin, PyArrayObject *x, attn_rotary_problem *);
extern PyMethodDef py_rotary_methods[];

#endif
