/* The product of tile form: rows of A in panels, lanes of B in vectors that lie together. */
#ifndef ATTN_KERNEL_GEMM_TILES_H
#define ATTN_KERNEL_GEMM_TILES_H

#include "kernel/gemm/panel.h"

/* Multiplies `rows` rows from row i on if so many are left, but fewer than a panel's; twice if panels
 * have six rows and so many are left again. Returns the next row. */
static INLINE ptrdiff_t
multiply_some(const tile_product *m, ptrdiff_t i, const int rows, const int n_vec,
              const bool a_transposed)
{
    if (rows >= panel_rows(n_vec) ||
        m->base.n_rows - i < rows) { /* the first the compiler knows */
        return i;
    }
    do {
        multiply_panel(m, i, rows, n_vec, a_transposed, NULL);
        i += rows;
    } while (panel_rows(n_vec) == 6 && m->base.n_rows - i >= rows);
    return i;
}

/* Multiplies the last rows of a product, fewer than a panel's (at most 12), in pieces of 8, 4, 2 and
 * 1. A case for each number of rows would take three times as much code. */
static INLINE void
multiply_rest(const tile_product *m, ptrdiff_t i, const int n_vec,
              const bool a_transposed)
{
    i = multiply_some(m, i, 8, n_vec, a_transposed);
    i = multiply_some(m, i, 4, n_vec, a_transposed);
    i = multiply_some(m, i, 2, n_vec, a_transposed);
    multiply_some(m, i, 1, n_vec, a_transposed);
}

/* Takes one of m->next, or a part of it, to be prefetched a line at each step of whole panels: a CPU
 * may drop some of many lines that are prefetched at once. Where its rows lie apart, a panel
 * prefetches one line of as many rows as it has steps. */
static NOINLINE step_prefetch
choose_step_prefetch(tile_product *m, ptrdiff_t n_panels)
{
    ptrdiff_t panel_lines = m->base.n_steps / STEPS_A_LINE;
    ptrdiff_t n_steps = n_panels * panel_lines; /* that prefetch a line */

    for (int k = 0; k < 2 && n_steps > 0; k++) {
        prefetch *next = &m->next[k];
        ptrdiff_t bytes = next->n_rows * next->bytes;
        if (bytes > 0 && next->row == next->bytes) {
            ptrdiff_t step = least((bytes + n_steps - 1) / n_steps, CACHE_LINE);
            ptrdiff_t n_rows = least(n_steps * step / next->row, next->n_rows);
            step_prefetch chosen = {next->at, step, panel_lines * step, n_panels};
            next->at += n_rows * next->row;
            next->n_rows -= n_rows;
            return chosen;
        }
        ptrdiff_t offset = (ptrdiff_t)((uintptr_t)next->at % CACHE_LINE);
        ptrdiff_t n_lines = (offset + next->bytes + CACHE_LINE - 1) / CACHE_LINE;
        if (next->n_rows >= panel_lines && n_panels >= n_lines) {
            step_prefetch chosen = {next->at, next->row, CACHE_LINE, n_lines};
            next->at += panel_lines * next->row;
            next->n_rows -= panel_lines;
            return chosen;
        }
    }
    return (step_prefetch){.at = m->base.b};
}

/* Prefetches, at once, the share of the panel from row i on in what is left of m->next. */
static NOINLINE void
prefetch_shares(const tile_product *m, ptrdiff_t i, int rows, ptrdiff_t whole)
{
    for (int k = 0; k < 2; k++) {
        prefetch share = prefetch_slice(&m->next[k], i, rows, whole);
        prefetch_rows(&share, 0, share.n_rows);
    }
}

static INLINE void
multiply_columns(tile_product *m, const int n_vec, const bool a_transposed)
{
    const int rows = panel_rows(n_vec);
    ptrdiff_t i = 0, n_panels = m->base.n_rows / rows, n_rest = m->base.n_rows % rows;

    if (rows == 6 && n_panels > 0 && (n_rest == 2 || n_rest == 3)) {
        n_panels--; /* twice four rows, for two would not keep the units busy */
    }
    step_prefetch next = choose_step_prefetch(m, n_panels);

    for (; i < n_panels * rows; i += rows) {
        if (m->next[0].n_rows > 0 || m->next[1].n_rows > 0) {
            prefetch_shares(m, i, rows, n_panels * rows);
        }
        multiply_panel(m, i, rows, n_vec, a_transposed, &next);
        next.at += next.panel;
        next.step = --next.n_panels > 0 ? next.step : 0;
    }
    multiply_rest(m, i, n_vec, a_transposed);
}

/* n_vec is 1 .. TILE_VECTORS, or twice as many. Fewer than TILE_VECTORS are multiplied one by
 * one. */
static INLINE void
multiply_tile(tile_product m, int n_vec, const bool a_transposed)
{
    if (PAIRS_TILES && n_vec == 2 * TILE_VECTORS) {
        multiply_columns(&m, 2 * TILE_VECTORS, a_transposed);
        return;
    }
    if (n_vec == TILE_VECTORS) {
        multiply_columns(&m, TILE_VECTORS, a_transposed);
        return;
    }
    for (; n_vec > 0; n_vec--) {
        multiply_columns(&m, 1, a_transposed);
        m.base.c += LANES;
        m.base.b += LANES * sizeof(operand);
        m.keep = m.keep == NULL ? NULL : m.keep + LANES;
        m.next[0].n_rows = m.next[1].n_rows = 0;
    }
}

static ALIGNED ONE_COPY void
multiply(tile_product m, int n_vec)
{
    multiply_tile(m, n_vec, false);
}

/* As multiply, where A is (steps, rows). */
static ALIGNED ONE_COPY void
multiply_transposed(tile_product m, int n_vec)
{
    multiply_tile(m, n_vec, true);
}

#endif
