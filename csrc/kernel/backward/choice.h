/* Chooses how gradients are multiplied: by vectors, or on a matrix unit. Both define
 * multiply_by_lanes, add_to_band and add_to_queries, and begin_head, begin_tile and end_tile
 * around them. */
#ifndef ATTN_KERNEL_BACKWARD_CHOICE_H
#define ATTN_KERNEL_BACKWARD_CHOICE_H

#ifdef MATRIX_UNIT
#include "kernel/amx/backward_sums.h"
#else
#include "kernel/backward/sums.h"
#endif

#endif
