/* Python and NumPy, for the binding's files. They alone know these: they convert and check
 * what they are given, to private arrays (objects.h), and hand the core a problem in which
 * everything is valid. What returns an int gives -1 where it has set an
 * exception. */
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
