/* Objects as numbers. */
#ifndef ATTN_PYTHON_NUMBERS_H
#define ATTN_PYTHON_NUMBERS_H

#include "python/binding.h"
#include <stdbool.h>
#include <stdint.h>

int py_check_count(Py_ssize_t n_arguments, Py_ssize_t least, Py_ssize_t most);
int py_check_range(int64_t number, const char *name, int64_t low, int64_t high);

int py_parse_flag(PyObject *, const char *name);
int py_parse_number(PyObject *, const char *name, double *); /* a finite one */
PyObject *py_as_index(PyObject *, const char *name);         /* Python's integer */
/* If it does not fit, the sign of `overflow` says on which side. */
int py_parse_integer(PyObject *, const char *name, int64_t *, int *overflow);
int py_parse_threads(PyObject *, int *n_threads);
int py_threads_or_default(PyObject *, int *n_threads); /* None: the process's */

#endif
