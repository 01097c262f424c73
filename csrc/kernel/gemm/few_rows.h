/* The product of few rows, for row form: lanes of B are columns, read where they lie. */
#ifndef ATTN_KERNEL_GEMM_FEW_ROWS_H
#define ATTN_KERNEL_GEMM_FEW_ROWS_H

#include "kernel/gemm/product.h"

enum { MOST_VECTORS = 8 /* of a row of C, computed at a time */ };

/* C = A B, or the chains that C holds, resumed. */
typedef struct {
    product base;
    bool resume;
    ptrdiff_t
        b_ahead; /* rows of B are prefetched so many bytes before they are read, */
    ptrdiff_t b_ahead_again; /* and as many where more rows of A read them again, */
    prefetch_goal b_goal;
} few_rows_product;

/* sum = C */
static INLINE void
load_sums(v_real *sum, const real *c, ptrdiff_t c_row, const int rows, const int n_vec)
{
    UNROLLED for (int r = 0; r < rows; r++)
    {
        UNROLLED for (int v = 0; v < n_vec; v++)
        {
            sum[r * n_vec + v] = v_load(c + r * c_row + v * LANES);
        }
    }
}

/* All rows of C, n_vec vectors of each. rows, n_vec and kind are constants to the compiler. */
static INLINE void
multiply_vectors_of_rows(const few_rows_product *m, const int rows, const int n_vec,
                         const storage kind)
{
    const ptrdiff_t vector = LANES * storage_bytes(kind);
    ptrdiff_t a_row = m->base.a.row, b_row = m->base.b_row;
    /* A row's vectors that are converted at a time: 8 and their sums are all that AVX2 has. */
    const int part =
        LANES == 8 && kind != AS_OPERANDS && rows == 1 && n_vec == 8 ? 4 : n_vec;
    const operand *a[MAX_POINTERS];
    const char *b = m->base.b;
    v_real sum[PANEL_ROWS * TILE_VECTORS];

    point_at_rows(a, m->base.a.at, a_row, rows, POINTER_ROWS);
    clear_sums(sum, rows * n_vec);
    if (m->resume) {
        load_sums(sum, m->base.c, m->base.c_row, rows, n_vec);
    }
    for (ptrdiff_t t = 0; t < m->base.n_steps; t++) {
        v_operand x[PANEL_ROWS * TILE_VECTORS];
        if (m->b_ahead != 0) {
            prefetch_operands(b + m->b_ahead, b_row, n_vec, kind, m->b_goal);
        }
        UNROLLED for (int first = 0; first < n_vec; first += part)
        {
            UNROLLED for (int v = first; v < first + part; v++)
            {
                x[v] = load_operands(b + v * vector, b + b_row + v * vector, kind);
            }
            add_step(sum + first, a, a_row, x + first, rows, part, POINTER_ROWS);
            if (part < n_vec) {
                __asm__("" : "+r"(b)); /* or all of a row is converted first */
            }
        }
        UNROLLED for (int g = 0; g * POINTER_ROWS < rows; g++)
        {
            a[g]++;
        }
        b += storage_rows(kind) * b_row;
    }
    ptrdiff_t c_row = m->base.c_row;
    __asm__(""
            : "+r"(c_row)); /* or compilers keep all rows' addresses during the loop */
    store_sums(sum, m->base.c, c_row, WIDTH, rows, n_vec);
}

/* Computes columns `at_once` vectors at a time, if that many sums fit in registers. Moves on
 * to the columns that are left, and returns their number in vectors. */
static INLINE ptrdiff_t
multiply_vectors_at_once(few_rows_product *m, const int rows, const int at_once,
                         ptrdiff_t n_vec, const storage kind)
{
    const ptrdiff_t vector = LANES * storage_bytes(kind);

    if (LANES == 1 && at_once > 1) { /* code that would gain nothing */
        return n_vec;
    }
    for (; rows * at_once <= PANEL_ROWS * TILE_VECTORS && n_vec >= at_once;
         n_vec -= at_once) {
        multiply_vectors_of_rows(m, rows, at_once, kind);
        m->base.c += (ptrdiff_t)at_once * LANES;
        m->base.b += at_once * vector;
    }
    return n_vec;
}

static INLINE void
multiply_n_rows(few_rows_product m, const int rows, ptrdiff_t n_vec, const storage kind)
{
    n_vec = multiply_vectors_at_once(&m, rows, MOST_VECTORS, n_vec, kind);
    n_vec = multiply_vectors_at_once(&m, rows, 4, n_vec, kind);
    if (rows * 4 > PANEL_ROWS * TILE_VECTORS) { /* 4 at a time do not fit */
        n_vec = multiply_vectors_at_once(&m, rows, 2, n_vec, kind);
    }
    multiply_vectors_at_once(&m, rows, 1, n_vec, kind);
}

/* Rows that are multiplied at a time: half of 8 where these would have sums of one vector only. */
enum {
    ROWS_AT_ONCE = PANEL_ROWS * TILE_VECTORS / ATTN_FEW_ROWS > 1 ? ATTN_FEW_ROWS
                                                                 : ATTN_FEW_ROWS / 2
};

/* The product for 1, 2, 4 or ROWS_AT_ONCE rows and any number of vectors, with B as it lies in
 * memory. */
static INLINE void
multiply_few_rows_as(few_rows_product m, ptrdiff_t n_vec, const storage kind)
{
    if (m.base.n_rows == 1) {
        multiply_n_rows(m, 1, n_vec, kind);
    } else if (m.base.n_rows == 2) {
        multiply_n_rows(m, 2, n_vec, kind);
    } else if (m.base.n_rows < ROWS_AT_ONCE || ROWS_AT_ONCE == 4) {
        multiply_n_rows(m, 4, n_vec, kind);
    } else {
        multiply_n_rows(m, 8, n_vec, kind);
    }
}

/* The product for up to ATTN_FEW_ROWS rows. A and C have as many as row_form_rows() says. */
static ALIGNED NOINLINE void
multiply_few_rows(few_rows_product m, ptrdiff_t n_vec, storage kind)
{
    for (ptrdiff_t left = m.base.n_rows; left > 0; left -= ROWS_AT_ONCE) {
        m.base.n_rows = row_form_rows(least(left, ROWS_AT_ONCE));
        switch (kind) {
#if REAL_BITS == 32 && TERMS == 1
        case AS_F16: multiply_few_rows_as(m, n_vec, AS_F16); break;
        case AS_BF16: multiply_few_rows_as(m, n_vec, AS_BF16); break;
#elif TERMS > 1
        case AS_TWO_ROWS: multiply_few_rows_as(m, n_vec, AS_TWO_ROWS); break;
#endif
        case AS_OPERANDS: multiply_few_rows_as(m, n_vec, AS_OPERANDS); break;
        }
        m.base.c += ROWS_AT_ONCE * m.base.c_row;
        m.base.a.at += ROWS_AT_ONCE * m.base.a.row;
        m.b_ahead = m.b_ahead_again;
    }
}

/* How many vectors of a packed panel's row are computed at a time: the sums of all rows fit in
 * registers. */
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
multiply_panel_rows(few_rows_product m, const int rows, const storage kind)
{
    const int at_once = panel_width(rows);

    for (int v = 0; v < PANEL_VECTORS; v += at_once) {
        multiply_vectors_of_rows(&m, rows, at_once, kind);
        m.base.c += (ptrdiff_t)at_once * LANES;
        m.base.b += (ptrdiff_t)at_once * LANES * storage_bytes(kind);
    }
}

static INLINE void
multiply_few_rows_by_panel_as(few_rows_product m, const storage kind)
{
    switch (m.base.n_rows) {
    case 1: multiply_panel_rows(m, 1, kind); break;
    case 2: multiply_panel_rows(m, 2, kind); break;
    case 4: multiply_panel_rows(m, 4, kind); break;
    default: multiply_panel_rows(m, 8, kind); break;
    }
}

/* The product for 1, 2, 4 or 8 rows, with a packed panel as B. */
static ALIGNED NOINLINE void
multiply_few_rows_by_panel(few_rows_product m, storage kind)
{
#if REAL_BITS == 32 && TERMS == 1
    if (kind == AS_F16) {
        multiply_few_rows_by_panel_as(m, AS_F16);
        return;
    }
#endif
    (void)kind;
    multiply_few_rows_by_panel_as(m, AS_OPERANDS);
}

#endif
