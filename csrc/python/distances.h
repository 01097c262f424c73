/* Scores by distance. */
#ifndef ATTN_PYTHON_DISTANCES_H
#define ATTN_PYTHON_DISTANCES_H

#include "python/binding.h"

extern PyMethodDef py_distances_methods[];

#endif
