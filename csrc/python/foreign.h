/* Arrays on memory that other libraries keep. */
#ifndef ATTN_PYTHON_FOREIGN_H
#define ATTN_PYTHON_FOREIGN_H

#include "python/binding.h"

extern PyMethodDef py_foreign_methods[];

#endif
