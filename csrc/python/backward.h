/* attention_vjp(). */
#ifndef ATTN_PYTHON_BACKWARD_H
#define ATTN_PYTHON_BACKWARD_H

#include "python/binding.h"

extern PyMethodDef py_backward_methods[];

#endif
