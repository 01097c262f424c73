/* attend_partial(), whose state outlives a call. */
#ifndef ATTN_PYTHON_PARTIAL_H
#define ATTN_PYTHON_PARTIAL_H

#include "python/binding.h"

extern PyMethodDef py_partial_methods[];

#endif
