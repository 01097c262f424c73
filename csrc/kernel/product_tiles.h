/* The product as tile form has it: rows of A in panels, lanes of B in vectors that lie
 * together. */
#ifndef ATTN_KERNEL_PRODUCT_TILES_H
#define ATTN_KERNEL_PRODUCT_TILES_H

#include "kernel/product.h"

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

static INLINE void
multiply_columns(const product *m, const int n_vec, const bool a_transposed)
{
    ptrdiff_t i = 0;

    for (; i + PANEL_ROWS <= m->n_rows; i += PANEL_ROWS) {
        prefetch_share(&m->next[0], i, m->n_rows);
        prefetch_share(&m->next[1], i, m->n_rows);
        multiply_panel(m, i, PANEL_ROWS, n_vec, a_transposed, false, AS_OPERANDS);
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
