/* The product of few rows with lines of memory, for row form: lanes of B are lines, which are
 * transposed in registers. Scores have keys as lines, linear products columns of a matrix whose
 * transpose lies in memory. */
#ifndef ATTN_KERNEL_GEMM_LINES_H
#define ATTN_KERNEL_GEMM_LINES_H

#include "kernel/gemm/product.h"

/* Not inlined: converting single numbers takes much code, and columns behind the last
 * whole vector are rare. */
static NOINLINE void
convert_column(operand *lanes, const char *at, ptrdiff_t row, const storage kind)
{
    for (int i = 0; i < LANES; i++) {
        ONE_BY_ONE;
        lanes[i] = load_operand(at + i * row, kind);
    }
}

/* The operand at an address of each of LANES lines. */
static INLINE v_operand
load_column(const char *at, ptrdiff_t row, const storage kind)
{
    operand lanes[LANES];

    if (kind == AS_OPERANDS) {
        for (int i = 0; i < LANES; i++) {
            lanes[i] = load_operand(at + i * row, kind);
        }
    } else {
        convert_column(lanes, at, row, kind);
    }
    return v_load_operands(lanes);
}

/* sum[r][lane] += a[r][t] * line[lane][t] for the n operands t that the transposed vectors x
 * hold. */
static INLINE void
add_products(v_real *sum, const v_operand *x, const int n, const int rows,
             const operand *a, ptrdiff_t a_row)
{
    UNROLLED for (int i = 0; i < n; i++)
    {
        for (int r = 0; r < rows; r++) {
            sum[r] = v_dot(v_set1_operand(a[r * a_row + i]), x[i], sum[r]);
        }
    }
}

/* The same of n_vec vectors of lines, from an address on, transposed in registers. */
static INLINE void
add_columns(v_real *sum, const char *at, ptrdiff_t row, const int rows, int n_vec,
            const operand *a, ptrdiff_t a_row, const storage kind)
{
    v_operand x[LANES];

    for (int v = 0; v < n_vec; v++) {
        for (int i = 0; i < LANES; i++) {
            x[i] = load_operands(at + (v * LANES + i) * row, NULL, kind);
        }
        v_transpose_operands(x);
        add_products(sum + v * rows, x, LANES, rows, a, a_row);
    }
}

/* C = A B, or C + A B, in chains: each begins at 0, and is added to the sum of those before. */
typedef struct {
    product base;     /* of B: (lines, steps), b_row bytes from line to line */
    ptrdiff_t chain;  /* steps */
    bool add;         /* to what C holds */
    const char *next; /* lines that are read after these */
} lines_product;

/* Lines of B are prefetched so many bytes before they are read. */
enum { LINES_AHEAD = 512 };

/* Prefetches a cache line of each of n lines to the second-level cache: in the first, lines that
 * are a multiple of 4 KB apart would drive each other out. */
static INLINE void
prefetch_lines(const char *at, ptrdiff_t row, const int n)
{
    UNROLLED for (int i = 0; i < n; i++)
    {
        __builtin_prefetch(at + i * row, 0, 2);
    }
}

/* All rows of C, n_vec vectors of each. rows, n_vec and kind are constants to the compiler. */
static INLINE void
multiply_lines_of_rows(const lines_product *m, const int rows, const int n_vec,
                       const storage kind)
{
    const ptrdiff_t size = storage_bytes(kind), row = m->base.b_row;
    const ptrdiff_t n_steps = m->base.n_steps, a_row = m->base.a.row;
    const operand *a = m->base.a.at;
    const char *at = m->base.b, *ahead = at + LINES_AHEAD, *end = at + n_steps * size;
    bool add = m->add;
    ptrdiff_t t = 0;

    do { /* there may be nothing to add up */
        ptrdiff_t behind = least(t + m->chain, n_steps);
        v_real sum[PANEL_ROWS * TILE_VECTORS];
        clear_sums(sum, rows * n_vec);
        for (; t + LANES <= behind;
             t += LANES, at += LANES * size, ahead += LANES * size) {
            if (ahead >= end) {
                ahead += m->next - end;
                end = ahead + n_steps * size;
            }
            if (t * size % CACHE_LINE == 0) {
                prefetch_lines(ahead, row, n_vec * LANES);
            }
            add_columns(sum, at, row, rows, n_vec, a + t, a_row, kind);
        }
        for (; t < behind; t++, at += size) {
            for (int v = 0; v < n_vec; v++) {
                v_operand x = load_column(at + v * LANES * row, row, kind);
                add_products(sum + v * rows, &x, 1, rows, a + t, a_row);
            }
        }
        for (int i = 0; i < rows * n_vec; i++) {
            real *c = m->base.c + i % rows * m->base.c_row + i / rows * LANES;
            v_store(c, add ? v_add(v_load(c), sum[i]) : sum[i]);
        }
        add = true;
    } while (t < n_steps);
}

/* Computes `most` vectors of lines at a time, then the rest one by one. */
static INLINE void
multiply_n_lines(lines_product m, const int rows, const int most, ptrdiff_t n_vec,
                 const storage kind)
{
    const char *after = m.next;

    for (ptrdiff_t taken; n_vec > 0; n_vec -= taken) {
        taken = n_vec >= most ? most : 1;
        m.next = n_vec > taken ? m.base.b + taken * LANES * m.base.b_row : after;
        if (taken == most) {
            multiply_lines_of_rows(&m, rows, most, kind);
        } else {
            multiply_lines_of_rows(&m, rows, 1, kind);
        }
        m.base.c += taken * LANES;
        m.base.b += taken * LANES * m.base.b_row;
    }
}

/* The product for 1, 2, 4 or 8 rows. A sum waits for the one before: while it does, short vectors
 * of a single row leave units idle, unless a second chain takes turns. */
static INLINE void
multiply_lines_as(lines_product m, ptrdiff_t n_vec, const storage kind)
{
    enum { IN_TURN = LANES > 1 && LANES < 8 ? 2 : 1 };

    switch (m.base.n_rows) {
    case 1: multiply_n_lines(m, 1, IN_TURN, n_vec, kind); break;
    case 2: multiply_n_lines(m, 2, 1, n_vec, kind); break;
    case 4: multiply_n_lines(m, 4, 1, n_vec, kind); break;
    default: multiply_n_lines(m, 8, 1, n_vec, kind); break;
    }
}

static ONE_COPY void
multiply_lines(lines_product m, ptrdiff_t n_vec, storage kind)
{
    switch (kind) {
#if REAL_BITS == 32 && TERMS == 1
    case AS_F16: multiply_lines_as(m, n_vec, AS_F16); break;
    case AS_BF16: multiply_lines_as(m, n_vec, AS_BF16); break;
#elif TERMS > 1
    case AS_TWO_ROWS: /* of rows of W */
#endif
    case AS_OPERANDS: multiply_lines_as(m, n_vec, AS_OPERANDS); break;
    }
}

#endif
