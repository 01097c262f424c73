/* The product as wide tiles have it: C += A^T B for two tiles of lanes at once, half a panel of
 * columns at a time. With as many accumulators an operand of A is loaded once for twice as many
 * products, and there are spare loads for asking for what comes next. */
#ifndef ATTN_KERNEL_PRODUCT_WIDE_H
#define ATTN_KERNEL_PRODUCT_WIDE_H

#include "kernel/product_tiles.h"
#include "kernel/trail.h"

#if WIDE_TILES

enum { WIDE_COLUMNS = PANEL_ROWS / 2, WIDE_VECTORS = 2 * TILE_VECTORS };

typedef struct {
    product m;         /* of the first tile, with A^T */
    ptrdiff_t a_panel; /* operands from PANEL_ROWS columns of A^T to the next ones */
    ptrdiff_t b_tile, c_tile; /* operands and reals to the second tile */
    trail trails[2];
} wide_product;

/* Where vector v of a row is. */
static INLINE ptrdiff_t
wide_vector(const int v, ptrdiff_t tile)
{
    return v / TILE_VECTORS * tile + v % TILE_VECTORS * LANES;
}

/* Columns i .. i + WIDE_COLUMNS - 1 of A. A function of its own, so that nothing else is in
 * registers. */
static ONE_COPY void
multiply_wide_panel(const wide_product *w, ptrdiff_t i)
{
    const ptrdiff_t a_step = w->m.a.row,
                    b_step = w->m.b_row / (ptrdiff_t)sizeof(operand);
    const ptrdiff_t c_row = w->m.c_row, b_tile = w->b_tile, c_tile = w->c_tile;
    const operand *a = w->m.a.at + i / PANEL_ROWS * w->a_panel + i % PANEL_ROWS;
    const operand *b = (const operand *)(const void *)w->m.b;
    const bool add = w->m.add;
    real *c = w->m.c + i * c_row;
    trail one = w->trails[0], other = w->trails[1];
    v_real sum[WIDE_COLUMNS * WIDE_VECTORS];

    UNROLLED for (int k = 0; k < WIDE_COLUMNS * WIDE_VECTORS; k++)
    {
        sum[k] = v_set1(0);
    }
    for (ptrdiff_t t = 0; t < w->m.n_steps; t++, a += a_step, b += b_step) {
        v_operand x[WIDE_VECTORS];
        UNROLLED for (int v = 0; v < WIDE_VECTORS; v++)
        {
            x[v] = v_load_operands(b + wide_vector(v, b_tile));
        }
        __builtin_prefetch(a + STEPS_AHEAD * a_step + WIDE_COLUMNS - 1);
        __builtin_prefetch(one.at, 0, 2);
        __builtin_prefetch(other.at, 0, 2);
        one.at += one.step;
        other.at += other.step;
        UNROLLED for (int k = 0; k < WIDE_COLUMNS * WIDE_VECTORS; k++)
        {
            v_operand y = v_set1_operand(a[k / WIDE_VECTORS]);
            sum[k] = v_dot(y, x[k % WIDE_VECTORS], sum[k]);
        }
    }
    UNROLLED for (int k = 0; k < WIDE_COLUMNS * WIDE_VECTORS; k++)
    {
        real *to = c + k / WIDE_VECTORS * c_row + wide_vector(k % WIDE_VECTORS, c_tile);
        v_store(to, add ? v_add(v_load(to), sum[k]) : sum[k]);
    }
}

/* All of the product's columns; those that half a panel lacks as tiles have them. */
static ONE_COPY void
multiply_two_tiles(wide_product w)
{
    ptrdiff_t n_parts = most(w.m.n_rows / WIDE_COLUMNS, 1),
              n_steps = most(w.m.n_steps, 1);
    ptrdiff_t i = 0;

    for (int k = 0; k < 2; k++) {
        w.trails[k] = trail_of(&w.m.next[k], n_parts, n_steps, w.m.b);
    }
    for (; i + WIDE_COLUMNS <= w.m.n_rows; i += WIDE_COLUMNS) {
        multiply_wide_panel(&w, i);
        next_part(&w.trails[0]);
        next_part(&w.trails[1]);
    }
    w.m.c += i * w.m.c_row;
    w.m.a.at += i / PANEL_ROWS * w.a_panel + i % PANEL_ROWS;
    w.m.n_rows -= i;
    w.m.next[0].n_rows = w.m.next[1].n_rows = 0;
    for (int tile = 0; tile < 2 && w.m.n_rows > 0; tile++) {
        multiply_transposed(w.m, TILE_VECTORS);
        w.m.c += w.c_tile;
        w.m.b += w.b_tile * (ptrdiff_t)sizeof(operand);
    }
}

#endif
#endif
