/* activate(). */
#ifndef ATTN_PYTHON_ACTIVATE_H
#define ATTN_PYTHON_ACTIVATE_H

#include "python/binding.h"

#include "core/activate.h"

/* The activation of this name; None: the identity. ATTN_SWIGLU_OAI has `times`. */
int py_parse_activation(PyObject *name, bool has_times, attn_activation *);
extern PyMethodDef py_activate_methods[];

#endif
