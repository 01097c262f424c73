/* Kernels for a matrix unit, whose tiles are in plain C. */
#ifndef SUPPORT_TILES_H
#define SUPPORT_TILES_H

#include "core/linear.h"

/* Products of integers; NULL where the CPU lacks what they take besides tiles. */
const attn_integer_kernel *integer_kernel_of_tiles(void);

#endif
