/* read_layers(): what stack() takes, from the layers themselves. */
#ifndef ATTN_PYTHON_READ_LAYERS_H
#define ATTN_PYTHON_READ_LAYERS_H

#include "python/binding.h"

extern PyMethodDef py_read_layers_methods[];

#endif
