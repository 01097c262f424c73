/* The products of the backward pass, all by the micro-kernel. Two of them multiply keys
 * by rows in the lanes, as the forward pass does: the scores, and the gradients of
 * weights. */
#ifndef ATTN_KERNEL_BACKWARD_PRODUCTS_H
#define ATTN_KERNEL_BACKWARD_PRODUCTS_H

#include "kernel/backward/prefetch.h"
#include "kernel/operands/matrix.h"
#include "kernel/gemm/tiles.h"

/* As multiply, or multiply_transposed, for any number of vectors, 0 too. They lie side by side, so
 * that twice as many are multiplied as two tiles. */
static void
multiply_vectors(tile_product m, ptrdiff_t n_vec, bool a_transposed)
{
    bool pairs = PAIRS_TILES && attn_get_tuning(ATTN_TUNE_PAIR_TILES);

    m.b_tile = WIDTH * (ptrdiff_t)sizeof(operand);
    m.c_tile = WIDTH;
    for (int n; n_vec > 0; n_vec -= n) {
        n = pairs && n_vec >= 2 * TILE_VECTORS ? 2 * TILE_VECTORS
                                               : (int)least(n_vec, TILE_VECTORS);
        if (a_transposed) {
            multiply_transposed(m, n);
        } else {
            multiply(m, n);
        }
        m.next[0].n_rows = m.next[1].n_rows = 0;
        m.base.c += n * LANES;
        m.base.b += n * LANES * (ptrdiff_t)sizeof(operand);
    }
}

/* Adds a product to the last n columns of gradients, fewer than a vector has: the
 * memory behind them belongs to another row, and maybe to another thread. */
static NOINLINE void
multiply_last_columns(backward_work *w, tile_product m, ptrdiff_t n, bool a_transposed)
{
    real *to = m.base.c, *sums = w->rows.staging; /* (BLOCK, LANES) */
    ptrdiff_t to_row = m.base.c_row;

    m.base.c = sums;
    m.base.c_row = LANES;
    m.add = false;
    multiply_vectors(m, 1, a_transposed);
    for (ptrdiff_t i = 0; i < m.base.n_rows; i++, to += to_row, sums += LANES) {
        for (ptrdiff_t d = 0; d < n; d++) {
            ONE_BY_ONE;
            to[d] += sums[d];
        }
    }
}

/* As multiply_vectors, for any number of columns. */
static void
multiply_any_columns(backward_work *w, tile_product m, ptrdiff_t n, bool a_transposed)
{
    ptrdiff_t n_vec = n / LANES;

    multiply_vectors(m, n_vec, a_transposed);
    if (n % LANES > 0) {
        m.base.c += n_vec * LANES;
        m.base.b += n_vec * LANES * (ptrdiff_t)sizeof(operand);
        multiply_last_columns(w, m, n % LANES, a_transposed);
    }
}

/* to[key][lane] = a run of keys, or values, from key `first` on, times the same columns of lanes,
 * which are (tiles, columns / TERMS, WIDTH); for each tile those of its span. */
static void
multiply_by_lanes(backward_work *w, key_run keys, ptrdiff_t first, const span *spans,
                  const operand *lanes, real *to)
{
    ptrdiff_t n_columns = keys.dim, d = 0;

    do { /* there may be no column */
        ptrdiff_t n = least(n_columns - d, ATTN_DIM_BLOCK);
        const char *from = keys.at + d * keys.array->column_stride;
        matrix a = fetch_lines(keys.array, from, keys.n, n_columns, n, w->rows.slab);
        for (int t = 0; t < w->rows.n_tiles; t++) {
            const operand *b = lanes + (t * operands_of(n_columns) + d / TERMS) * WIDTH;
            ptrdiff_t key = spans[t].first - first;
            bool paired = PAIRS_TILES && t + 1 < w->rows.n_tiles &&
                          tile_vectors(&w->rows, t + 1) == TILE_VECTORS &&
                          spans[t].first == spans[t + 1].first &&
                          spans[t].n == spans[t + 1].n &&
                          attn_get_tuning(ATTN_TUNE_PAIR_TILES);
            if (spans[t].n == 0) {
                continue;
            }
            multiply((tile_product){.base = {.c = to + key * LINE + t * WIDTH,
                                             .c_row = LINE,
                                             .a = {a.at + key * a.row, a.row},
                                             .b = (const char *)b,
                                             .b_row = WIDTH * sizeof(operand),
                                             .n_rows = spans[t].n,
                                             .n_steps = operands_of(n)},
                                    .add = d > 0,
                                    .next = {take_prefetch(w), take_prefetch(w)},
                                    .b_tile = operands_of(n_columns) * WIDTH *
                                              (ptrdiff_t)sizeof(operand),
                                    .c_tile = WIDTH},
                     tile_vectors(&w->rows, t) << paired);
            t += paired;
        }
        d += ATTN_DIM_BLOCK;
    } while (d < n_columns);
}

#endif
