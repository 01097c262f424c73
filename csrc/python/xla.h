/* XLA's foreign-function interface: its calls become those of a Python function. */
#ifndef ATTN_PYTHON_XLA_H
#define ATTN_PYTHON_XLA_H

#include "python/binding.h"

extern PyMethodDef py_xla_methods[];

#endif
