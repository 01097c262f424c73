/* adamw(), sum_of_squares() and scale(). */
#ifndef ATTN_PYTHON_OPTIMIZE_H
#define ATTN_PYTHON_OPTIMIZE_H

#include "python/binding.h"

extern PyMethodDef py_optimize_methods[];

#endif
