/* Tile form with wide tiles, where W is packed. */
#ifndef ATTN_KERNEL_LINEAR_WIDE_H
#define ATTN_KERNEL_LINEAR_WIDE_H

#include "kernel/linear/pack.h"
#include "kernel/product_wide.h"

#if WIDE_TILES

/* Rows of a task with wide tiles, at most, whatever the product. */
static ptrdiff_t
linear_wide_rows(const attn_linear_problem *l)
{
    (void)l;
    return ATTN_WIDE_ROWS;
}

/* Are two tiles from row r on computed at once? */
static bool
are_wide(const linear_work *w, ptrdiff_t r)
{
    return w->l->wide && (w->packs || w->l->packed) &&
           w->task->n_rows - r > 2 * WIDTH - LANES;
}

/* Those two tiles, with their share of what is asked for meanwhile. */
static void
add_two_tiles(const linear_work *w, product m, ptrdiff_t r)
{
    ptrdiff_t panel = w->packs ? PACKED_PANEL : PANEL_ROWS;

    for (int k = 0; k < 2; k++) {
        m.next[k] = prefetch_slice(&m.next[k], r, 2 * WIDTH, w->task->n_rows);
    }
    multiply_two_tiles((wide_product){.m = m,
                                      .a_panel = panel,
                                      .b_tile = STEPS * WIDTH,
                                      .c_tile = WIDTH * w->task->n_columns});
}

/* One tile, with W packed. */
static void
add_packed_tile(product m, int n_vec)
{
    for (ptrdiff_t left = m.n_rows; left > 0; left -= PANEL_ROWS) {
        m.n_rows = least(left, PANEL_ROWS);
        multiply_transposed(m, n_vec);
        m.next[0].n_rows = m.next[1].n_rows = 0;
        m.c += PANEL_ROWS * m.c_row;
        m.a.at += PACKED_PANEL;
    }
}

#endif
#endif
