/* columns(): what columns of a quantised matrix stand for. */
#ifndef ATTN_PYTHON_COLUMNS_H
#define ATTN_PYTHON_COLUMNS_H

#include "python/binding.h"

extern PyMethodDef py_columns_methods[];

#endif
