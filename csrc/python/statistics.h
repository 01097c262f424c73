/* statistics(): what attention's weights sum up to, without the weights. */
#ifndef ATTN_PYTHON_STATISTICS_H
#define ATTN_PYTHON_STATISTICS_H

#include "python/binding.h"

extern PyMethodDef py_statistics_methods[];

#endif
