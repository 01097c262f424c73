/* activate(). */
#ifndef ATTN_PYTHON_ACTIVATE_H
#define ATTN_PYTHON_ACTIVATE_H

#include "python/binding.h"

#include "core/activate.h"

/* The activation of this name; None: the identity. */
int py_parse_activation(PyObject *name, attn_activation *);
extern PyMethodDef py_activate_methods[];

#endif
