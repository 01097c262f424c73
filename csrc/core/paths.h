/* Counts how often a kernel takes the faster of two ways to the same bits, for tests/core: from bits
 * alone no test would see that a rule has stopped choosing it. Elsewhere nothing is counted. */
#ifndef ATTN_CORE_PATHS_H
#define ATTN_CORE_PATHS_H

typedef enum {
    ATTN_PATH_PANEL_GROUPS, /* panels with steps in groups: kernel/gemm/panel.h */
    ATTN_PATH_KEPT_ROWS, /* blocks of keys, or values, that an earlier task converted:
                               kernel/attention/operands.h */
    ATTN_PATH_MANY_ROWS, /* products for many rows: kernel/gemm/many_rows.h, */
    ATTN_PATH_MANY_ROWS_GROUPS,    /* and those with steps in groups */
    ATTN_PATH_ROUNDED_TILES,       /* tiles of rounded rows: kernel/integer/tile.h, */
    ATTN_PATH_ROUNDED_TILE_SHORTS, /* and those whose sums have 16 bits */
    ATTN_PATH_SPLIT_BYTES, /* tiles of split rows whose digits are bytes: kernel/integer/digits.h */
    ATTN_PATH_BF16_COLUMNS, /* squares of bfloat16 transposed in pairs: kernel/gemm/lines.h */
    ATTN_PATH_CROSSED_TILES, /* tiles whose products are crossed: kernel/integer/crossed.h */
    ATTN_N_PATHS
} attn_path;

#ifdef ATTN_COUNTS_PATHS

#include <stdatomic.h>

extern atomic_long attn_path_counts[ATTN_N_PATHS];

static inline void
attn_count_path(attn_path path)
{
    atomic_fetch_add(&attn_path_counts[path], 1);
}

/* How often it was taken since it was asked last. */
static inline long
attn_take_count(attn_path path)
{
    return atomic_exchange(&attn_path_counts[path], 0);
}

#else

static inline void
attn_count_path(attn_path path)
{
    (void)path;
}

#endif

#endif
