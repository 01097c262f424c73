/* statistics(): sums of attention's weights, without storing the weights. */
#ifndef ATTN_PYTHON_STATISTICS_H
#define ATTN_PYTHON_STATISTICS_H

#include "python/binding.h"

extern PyMethodDef py_statistics_methods[];

#endif
