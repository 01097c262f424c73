/* The product of few rows, for row form: lanes of B are columns, read where they lie. */
#ifndef ATTN_KERNEL_GEMM_FEW_ROWS_H
#define ATTN_KERNEL_GEMM_FEW_ROWS_H

#include "kernel/gemm/product.h"

/* As many columns of the product of few rows as `at_once` vectors at a time make up, if that
 * many accumulators fit in registers; moves on to the rest, and returns its vectors. */
static INLINE ptrdiff_t
multiply_vectors_at_once(product *m, const int rows, const int at_once, ptrdiff_t n_vec,
                         const storage kind)
{
    const ptrdiff_t vector = LANES * storage_bytes(kind);

    if (LANES == 1 && at_once > 1) { /* code that would gain nothing */
        return n_vec;
    }
    for (; rows * at_once <= PANEL_ROWS * TILE_VECTORS && n_vec >= at_once;
         n_vec -= at_once) {
        multiply_panel(m, 0, rows, at_once, false, true, kind);
        m->c += (ptrdiff_t)at_once * LANES;
        m->b += at_once * vector;
    }
    return n_vec;
}

static INLINE void
multiply_n_rows(product m, const int rows, ptrdiff_t n_vec, const storage kind)
{
    n_vec = multiply_vectors_at_once(&m, rows, 8, n_vec, kind);
    n_vec = multiply_vectors_at_once(&m, rows, 4, n_vec, kind);
    if (rows * 4 > PANEL_ROWS * TILE_VECTORS) { /* 4 at a time do not fit */
        n_vec = multiply_vectors_at_once(&m, rows, 2, n_vec, kind);
    }
    multiply_vectors_at_once(&m, rows, 1, n_vec, kind);
}

/* As multiply, for 1, 2, 4 or 8 rows, any number of vectors, and B as it lies in memory. */
static INLINE void
multiply_few_rows_as(product m, ptrdiff_t n_vec, const storage kind)
{
    switch (m.n_rows) {
    case 1: multiply_n_rows(m, 1, n_vec, kind); break;
    case 2: multiply_n_rows(m, 2, n_vec, kind); break;
    case 4: multiply_n_rows(m, 4, n_vec, kind); break;
    default: multiply_n_rows(m, 8, n_vec, kind); break;
    }
}

static NOINLINE void
multiply_few_rows(product m, ptrdiff_t n_vec, storage kind)
{
    switch (kind) {
#if REAL_BITS == 32 && TERMS == 1
    case AS_F16: multiply_few_rows_as(m, n_vec, AS_F16); break;
    case AS_BF16: multiply_few_rows_as(m, n_vec, AS_BF16); break;
#elif TERMS > 1
    case AS_TWO_ROWS: multiply_few_rows_as(m, n_vec, AS_TWO_ROWS); break;
#endif
    default: multiply_few_rows_as(m, n_vec, AS_OPERANDS); break;
    }
}

/* How many vectors of a packed panel's row are computed at a time, with as many rows: those
 * whose sums fit in registers. */
static INLINE int
panel_width(const int rows)
{
    const int most = PANEL_ROWS * TILE_VECTORS / rows;

    return PANEL_VECTORS <= most                                 ? PANEL_VECTORS
           : PANEL_VECTORS % 2 == 0 && PANEL_VECTORS / 2 <= most ? PANEL_VECTORS / 2
           : PANEL_VECTORS % 4 == 0 && PANEL_VECTORS / 4 <= most ? PANEL_VECTORS / 4
                                                                 : 1;
}

static INLINE void
multiply_panel_rows(product m, const int rows)
{
    const int at_once = panel_width(rows);

    for (int v = 0; v < PANEL_VECTORS; v += at_once) {
        multiply_panel(&m, 0, rows, at_once, false, true, AS_OPERANDS);
        m.c += (ptrdiff_t)at_once * LANES;
        m.b += (ptrdiff_t)at_once * LANES * (ptrdiff_t)sizeof(operand);
    }
}

/* As multiply_few_rows, with the rows of a panel as B. */
static NOINLINE void
multiply_few_rows_by_panel(product m)
{
    switch (m.n_rows) {
    case 1: multiply_panel_rows(m, 1); break;
    case 2: multiply_panel_rows(m, 2); break;
    case 4: multiply_panel_rows(m, 4); break;
    default: multiply_panel_rows(m, 8); break;
    }
}

#endif
