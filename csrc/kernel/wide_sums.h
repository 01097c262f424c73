/* The sums of a wide task's product: a group of rows of a panel, in registers. */
#ifndef ATTN_KERNEL_WIDE_SUMS_H
#define ATTN_KERNEL_WIDE_SUMS_H

#include "kernel/product_few.h"

#if WIDE_TASKS

enum { WIDE_ROWS = 8, WIDE_SUMS = WIDE_ROWS * PANEL_VECTORS };

_Static_assert(WIDE_ROWS <= (MAX_POINTERS - 1) * POINTER_ROWS,
               "pointers reach all rows");
_Static_assert(WIDE_SUMS <= PANEL_ROWS * TILE_VECTORS, "sums are in registers");

/* Adds rows that lie so far apart; 0 is for one row that all get. */
static INLINE void
add_rows(v_real *sum, const real *rows, ptrdiff_t row)
{
    UNROLLED for (int k = 0; k < WIDE_SUMS; k++)
    {
        sum[k] = v_add(sum[k], v_load(rows + k % PANEL_VECTORS * LANES));
        if (k % PANEL_VECTORS == PANEL_VECTORS - 1) {
            rows += row;
            __asm__("" : "+r"(rows)); /* or all rows' addresses are held */
        }
    }
}

static INLINE void
store_rows(const v_real *sum, char *to, ptrdiff_t row, const bool rounds)
{
    UNROLLED for (int k = 0; k < WIDE_SUMS; k++)
    {
        const int at = k % PANEL_VECTORS * LANES;
        if (rounds) {
            v_store_bf16((uint16_t *)(void *)to + at, sum[k]);
        } else {
            v_store((real *)(void *)to + at, sum[k]);
        }
        if (k % PANEL_VECTORS == PANEL_VECTORS - 1) {
            to += row;
            __asm__("" : "+r"(to));
        }
    }
}

#endif
#endif
