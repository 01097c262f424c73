/* The bit contract's constants, and the sizes of tasks. */
#ifndef ATTN_CORE_LIMITS_H
#define ATTN_CORE_LIMITS_H

#include <stdint.h>

/* Part of the bit contract: sums go over blocks at these absolute positions, each from 0,
 * the same for every instruction set, number of threads and form. Short chains drift
 * less. */
#define ATTN_BLOCK 128    /* keys that share one maximum and one rescaling */
#define ATTN_CHUNK 512    /* keys that are summed separately and then combined */
#define ATTN_DIM_BLOCK 64 /* dimensions of a dot product that make one chain */

#define ATTN_BLOCK_WORDS (ATTN_BLOCK / 64) /* 64-bit words of a block's visible keys */

#define ATTN_TASK_ROWS 64   /* rows of a task, at most */
#define ATTN_MANY_ROWS 256  /* the same in the form of linear products for many rows */
#define ATTN_TILE_ROWS 32   /* whole tiles in every tier */
#define ATTN_VECTOR_ROWS 16 /* whole vectors in every tier */

/* Row form is faster up to this many rows: */
#define ATTN_FEW_ROWS 8     /* in attention, and in products with plain weights */
#define ATTN_PACKED_ROWS 16 /* in products with packed weights, */
#define ATTN_NARROW_ROWS 12 /* and where more rows take the form for many */

#define ATTN_LINEAR_COLUMNS 384 /* that a linear task computes at a time */
#define ATTN_FEW_ROWS_COLUMNS                                                          \
    512                       /* of a task with ATTN_FEW_ROWS; more for fewer rows */
#define ATTN_PANEL_COLUMNS 48 /* of packed weights: whole vectors in every tier */

#define ATTN_MAX_AXES 64 /* as in NumPy 2 */
#define ATTN_MAX_THREADS 1024
#define ATTN_MAX_DIM                                                                   \
    (INT64_C(1) << 40) /* of D and Dv: sizes of workspaces fit in 63 bits */

/* Chunks per thread whose partial results are kept until they are combined. */
#define ATTN_PARTIALS_PER_THREAD 8

#endif
