/* The product of tile form: rows of A in panels, lanes of B in vectors that lie together. */
#ifndef ATTN_KERNEL_GEMM_TILES_H
#define ATTN_KERNEL_GEMM_TILES_H

#include "kernel/gemm/product.h"

/* Those of two that are due while columns d .. d + some - 1 of `dim` are multiplied. */
static NOINLINE void
slice_next(const prefetch next[2], ptrdiff_t d, ptrdiff_t some, ptrdiff_t dim,
           prefetch due[2])
{
    due[0] = prefetch_slice(&next[0], d, some, most(dim, 1));
    due[1] = prefetch_slice(&next[1], d, some, most(dim, 1));
}

/* So many rows from i on, if they are fewer than a panel has and as many are left; the next
 * row. */
static INLINE ptrdiff_t
multiply_some(const product *m, ptrdiff_t i, const int rows, const int n_vec,
              const bool a_transposed)
{
    if (rows >= PANEL_ROWS || m->n_rows - i < rows) { /* the first the compiler knows */
        return i;
    }
    multiply_panel(m, i, rows, n_vec, a_transposed, false, AS_OPERANDS);
    return i + rows;
}

/* The last rows of a product, fewer than PANEL_ROWS, of which there are at most 12. A case for
 * each number of them would be three times as much code. */
static INLINE void
multiply_rest(const product *m, ptrdiff_t i, const int n_vec, const bool a_transposed)
{
    i = multiply_some(m, i, 8, n_vec, a_transposed);
    i = multiply_some(m, i, 4, n_vec, a_transposed);
    i = multiply_some(m, i, 2, n_vec, a_transposed);
    multiply_some(m, i, 1, n_vec, a_transposed);
}

/* Chooses an array of what comes next that lies in one piece, which whole panels then prefetch
 * line by line, as far as there is a step for each line: a CPU may drop some of many lines that
 * are prefetched at once. */
static NOINLINE void
look_ahead_by_steps(product *m)
{
    ptrdiff_t n_steps = m->n_rows / PANEL_ROWS * m->n_steps;

    m->ahead = m->b;
    m->ahead_step = 0;
    for (int k = 0; k < 2 && m->ahead_step == 0 && n_steps > 0; k++) {
        prefetch *next = &m->next[k];
        ptrdiff_t bytes = next->n_rows * next->bytes;
        if (bytes > 0 && next->row == next->bytes) {
            ptrdiff_t step = least((bytes + n_steps - 1) / n_steps, CACHE_LINE);
            ptrdiff_t n_rows = least(n_steps * step / next->row, next->n_rows);
            m->ahead = next->at;
            m->ahead_step = step;
            next->at += n_rows * next->row;
            next->n_rows -= n_rows;
        }
    }
}

/* Prefetches the rest while whole panels are computed, the one from row i on. */
static NOINLINE void
prefetch_shares(const product *m, ptrdiff_t i, ptrdiff_t whole)
{
    for (int k = 0; k < 2; k++) {
        prefetch share = prefetch_slice(&m->next[k], i, PANEL_ROWS, whole);
        prefetch_rows(&share, 0, share.n_rows);
    }
}

static INLINE void
multiply_columns(product *m, const int n_vec, const bool a_transposed)
{
    ptrdiff_t i = 0, whole = m->n_rows / PANEL_ROWS * PANEL_ROWS;

    look_ahead_by_steps(m);
    for (; i < whole; i += PANEL_ROWS) {
        if (m->next[0].n_rows > 0 || m->next[1].n_rows > 0) {
            prefetch_shares(m, i, whole);
        }
        multiply_panel(m, i, PANEL_ROWS, n_vec, a_transposed, false, AS_OPERANDS);
        m->ahead += m->n_steps * m->ahead_step;
    }
    multiply_rest(m, i, n_vec, a_transposed);
}

/* n_vec is 1 .. TILE_VECTORS; fewer than TILE_VECTORS come singly. */
static INLINE void
multiply_tile(product m, int n_vec, const bool a_transposed)
{
    if (n_vec == TILE_VECTORS) {
        multiply_columns(&m, TILE_VECTORS, a_transposed);
        return;
    }
    for (; n_vec > 0; n_vec--) {
        multiply_columns(&m, 1, a_transposed);
        m.c += LANES;
        m.b += LANES * sizeof(operand);
        m.keep = m.keep == NULL ? NULL : m.keep + LANES;
        m.next[0].n_rows = m.next[1].n_rows = 0;
    }
}

static ONE_COPY void
multiply(product m, int n_vec)
{
    multiply_tile(m, n_vec, false);
}

/* As multiply, with A given as (steps, rows). */
static ONE_COPY void
multiply_transposed(product m, int n_vec)
{
    multiply_tile(m, n_vec, true);
}

#endif
