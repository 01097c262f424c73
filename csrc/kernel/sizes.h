/* Sizes that follow from a kernel's block sizes and its vocabulary, and their arithmetic. */
#ifndef ATTN_KERNEL_SIZES_H
#define ATTN_KERNEL_SIZES_H

#include "core/limits.h"
#include <stddef.h>

#ifndef TERMS
#define TERMS 1 /* of an operand of the products */
#endif

#if REAL_BITS == 32
#define REAL_DTYPE ATTN_F32
#else
#define REAL_DTYPE ATTN_F64
#endif

#ifndef HAS_MANY_ROWS
#define HAS_MANY_ROWS 0 /* has the kernel a form of products for many rows? */
#endif

#ifndef LOADS_COLUMNS
#define LOADS_COLUMNS 0 /* does the vocabulary have v_load_columns? */
#endif

#ifndef LOADS_BF16_COLUMNS
#define LOADS_BF16_COLUMNS 0 /* has it v_load_bf16_columns? */
#endif

#ifndef TAKES_TWO_PANELS
#define TAKES_TWO_PANELS                                                               \
    0 /* does one row take two packed panels at a time? Then the vocabulary has
         v_load_bf16_pairs */
#endif

#ifndef PANEL_STEPS
#define PANEL_STEPS                                                                    \
    1 /* of a whole panel between two jumps; if more, there is v_outlive, and
         v_add_product for many rows */
#endif

#ifndef HAS_BYTE_UNIT
#define HAS_BYTE_UNIT 0 /* may tiers with the kernel multiply bytes on a matrix unit? */
#endif

#ifdef MATRIX_UNIT
enum {
    HAS_UNIT = 1,
    SUM_TERMS = UNIT_TERMS,
    KEY_GROUP = UNIT_TERMS,
    LINE_COLUMNS = UNIT_LINE * UNIT_LANES,
    LEAST_SLAB = UNIT_TERMS / TERMS * LINE_COLUMNS
};
#else
enum {
    HAS_UNIT = 0,
    SUM_TERMS = TERMS,
    KEY_GROUP = LANES > 8 ? 2 * LANES : 16,
    LEAST_SLAB = 0
};
#endif
/* SUM_TERMS: keys, or dimensions, that an instruction of a product adds up; KEY_GROUP: keys
 * that row form takes at a time, two vectors at least; LINE_COLUMNS: columns of values that a
 * unit takes for few rows; LEAST_SLAB: operands of its slab. */

enum {
    CACHE_LINE = 64,              /* bytes */
    SLAB_COLUMNS = 128,           /* of rows that are converted at a time */
    WIDTH = TILE_VECTORS * LANES, /* rows of a tile */
    PANEL_VECTORS = ATTN_PANEL_COLUMNS / LANES,
    MAX_TILES = ATTN_TASK_ROWS / WIDTH,
    DIM_STEPS = ATTN_DIM_BLOCK / TERMS /* of the chain of a score */
};

static ptrdiff_t
round_up(ptrdiff_t n, ptrdiff_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static ptrdiff_t
least(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

static ptrdiff_t
most(ptrdiff_t a, ptrdiff_t b)
{
    return a > b ? a : b;
}

static ptrdiff_t
tiles_of(ptrdiff_t n_rows)
{
    return (n_rows + WIDTH - 1) / WIDTH;
}

/* Rows that row form computes for a task of n_rows, the last of them for nothing. */
static ptrdiff_t
row_form_rows(ptrdiff_t n_rows)
{
    return n_rows <= 2 ? n_rows : n_rows <= 4 ? 4 : 8;
}

#endif
