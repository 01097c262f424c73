/* Python and NumPy, for the binding's files. Only these files know them: they convert
 * arguments to private arrays (objects.h), check them, and give the core a valid
 * problem. Functions that return an int return -1 with an exception set. */
#ifndef ATTN_PYTHON_BINDING_H
#define ATTN_PYTHON_BINDING_H

#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL attn_numpy_api
#ifndef IMPORTS_NUMPY /* module.c does, for all */
#define NO_IMPORT_ARRAY
#endif
#include <Python.h>
#include <numpy/arrayobject.h>

#define PY_FUNCTION(f) (PyCFunction)(void (*)(void)) f

#endif
