/* Functions of other libraries that attnpy computes at times. */
#ifndef ATTN_PYTHON_GATE_H
#define ATTN_PYTHON_GATE_H

#include "python/binding.h"

extern PyMethodDef py_gate_methods[];

#endif
