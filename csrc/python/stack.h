/* stack(): the layers of a decoder, one after the other. */
#ifndef ATTN_PYTHON_STACK_H
#define ATTN_PYTHON_STACK_H

#include "python/binding.h"

extern PyMethodDef py_stack_methods[];

#endif
