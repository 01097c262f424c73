/* The products of the backward pass, all by the micro-kernel. Two of them multiply keys
 * by rows in the lanes, as the forward pass does: the scores, and the gradients of
 * weights. */
#ifndef ATTN_KERNEL_BACKWARD_PRODUCTS_H
#define ATTN_KERNEL_BACKWARD_PRODUCTS_H

#include "kernel/attention/tile_form/products.h"
#include "kernel/backward/prefetch.h"

/* C += A B of any number of vectors, 0 too, which lie side by side. */
static void
add_vectors(backward_work *w, tile_product m, ptrdiff_t n_vec)
{
    bool pairs = PAIRS_TILES && attn_get_tuning(ATTN_TUNE_PAIR_TILES);

    m.b_tile = WIDTH * sizeof(operand);
    m.c_tile = WIDTH;
    for (int n; n_vec > 0; n_vec -= n) {
        n = pairs && n_vec >= 2 * TILE_VECTORS ? 2 * TILE_VECTORS
                                               : (int)least(n_vec, TILE_VECTORS);
        take_prefetches(w, m.next);
        multiply(m, n);
        m.base.c += n * LANES;
        m.base.b += n * LANES * (ptrdiff_t)sizeof(operand);
    }
}

/* Adds a product to the last n columns of gradients, fewer than a vector has: the
 * memory behind them belongs to another row, and maybe to another thread. */
static NOINLINE void
add_last_columns(backward_work *w, tile_product m, ptrdiff_t n)
{
    real *to = m.base.c, *sums = w->rows.staging; /* (BLOCK, LANES) */
    ptrdiff_t to_row = m.base.c_row;

    m.base.c = sums;
    m.base.c_row = LANES;
    m.add = false;
    multiply(m, 1);
    for (ptrdiff_t i = 0; i < m.base.n_rows; i++, to += to_row, sums += LANES) {
        for (ptrdiff_t d = 0; d < n; d++) {
            ONE_BY_ONE;
            to[d] += sums[d];
        }
    }
}

/* As add_vectors, for any number of columns. */
static ONE_COPY void
add_columns_of_product(backward_work *w, tile_product m, ptrdiff_t n)
{
    ptrdiff_t n_vec = n / LANES;

    add_vectors(w, m, n_vec);
    if (n % LANES > 0) {
        m.base.c += n_vec * LANES;
        m.base.b += n_vec * LANES * (ptrdiff_t)sizeof(operand);
        add_last_columns(w, m, n % LANES);
    }
}

/* to[key][lane] = a run of keys, or values, from key `first` on, times the same columns of lanes,
 * which are (tiles, columns / TERMS, WIDTH); for each tile those of its span. */
static void
multiply_by_lanes(backward_work *w, key_run keys, ptrdiff_t first, const span *spans,
                  const operand *lanes, real *to)
{
    ptrdiff_t n_columns = keys.dim, tile = operands_of(n_columns) * WIDTH, d = 0;

    do { /* there may be no column */
        ptrdiff_t n = least(n_columns - d, ATTN_DIM_BLOCK);
        const char *from = keys.at + d * keys.array->column_stride;
        matrix a = fetch_lines(keys.array, from, keys.n, n_columns, n, w->rows.slab);
        for (int t = 0; t < w->rows.n_tiles; t++) {
            bool paired = are_paired(&w->rows, spans, t);
            ptrdiff_t key = spans[t].first - first;
            if (spans[t + paired].n == 0) {
                continue;
            }
            tile_product m = {
                .base = {.c = to + key * LINE + t * WIDTH,
                         .c_row = LINE,
                         .a = {a.at + key * a.row, a.row},
                         .b = (const char *)(lanes + t * tile + d / TERMS * WIDTH),
                         .b_row = WIDTH * sizeof(operand),
                         .n_steps = operands_of(n)},
                .add = d > 0,
                .b_tile = tile * (ptrdiff_t)sizeof(operand),
                .c_tile = WIDTH};
            take_prefetches(w, m.next);
            multiply_span(m, &spans[t], tile_vectors(&w->rows, t), paired);
            t += paired;
        }
        d += ATTN_DIM_BLOCK;
    } while (d < n_columns);
}

#endif
