/* The product of few rows with lines of memory, for row form: lanes of B are lines, transposed in
 * registers. They are keys, or columns of a matrix whose transpose lies in memory. */
#ifndef ATTN_KERNEL_GEMM_LINES_H
#define ATTN_KERNEL_GEMM_LINES_H

#include "kernel/gemm/columns.h"
#include "kernel/gemm/product.h"
#include "kernel/operands/prefetch.h"

/* sum[r][lane] += a[r][t] * line[lane][t] for the n operands t that transposed vectors x hold. */
static INLINE void
add_products(v_real *sum, const v_operand *x, const int n, const int rows,
             const operand *a, ptrdiff_t a_row)
{
    UNROLLED for (int i = 0; i < n; i++)
    {
        UNROLLED for (int r = 0; r < rows; r++)
        {
            sum[r] = v_dot(v_set1_operand(a[r * a_row + i]), x[i], sum[r]);
        }
    }
}

/* Adds the products of LANES steps of n_vec vectors of lines, which are transposed in registers. */
static INLINE void
add_columns(v_real *sum, const char *at, ptrdiff_t row, const int rows, int n_vec,
            const operand *a, ptrdiff_t a_row, const storage kind)
{
    v_operand x[LANES];

    UNROLLED for (int v = 0; v < n_vec; v++)
    {
        load_columns(x, at + v * LANES * row, row, kind);
        if (LANES == 8 && REAL_BITS == 32 && n_vec > 1) {
            __asm__("" : "+r"(a)); /* or factors of both vectors stay in registers */
        }
        add_products(sum + v * rows, x, LANES, rows, a, a_row);
    }
}

/* C = A B, or C + A B, in chains: each begins at 0, and is added to the sum of those before.
 * Meanwhile memory that is read later comes to the caches: */
typedef struct {
    product base;      /* of B: (lines, steps), b_row bytes from line to line */
    ptrdiff_t chain;   /* steps */
    bool add;          /* to what C holds */
    const char *after; /* lines of B, LINES_AHEAD, and then as much of these; or NULL */
    prefetch other;    /* a line of all these rows with one of B */
    const char *touch; /* as many bytes as are read of B, in order; or NULL */
    touch_form touch_as;
} lines_product;

enum { LINES_AHEAD = 512 /* bytes from lines that are read to those prefetched */ };

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

/* Lines of keys bring `touch` and `other` to the caches, those of weights `after`; OF_EITHER asks. */
typedef enum { OF_KEYS, OF_WEIGHTS, OF_EITHER } line_origin;

/* All rows of C, n_vec vectors of each. All but m are constants to the compiler. */
static INLINE void
multiply_lines_of_rows(const lines_product *m, const int rows, const int n_vec,
                       const storage kind, const line_origin origin)
{
    const ptrdiff_t size = storage_bytes(kind), n_steps = m->base.n_steps;
    const ptrdiff_t lines = n_vec * LANES * LANES * size / CACHE_LINE;
    const char *at = m->base.b, *end = at + n_steps * size;
    bool add = m->add;
    ptrdiff_t t = 0;

    do { /* there may be nothing to add up */
        ptrdiff_t behind = least(t + m->chain, n_steps);
        v_real sum[PANEL_ROWS * TILE_VECTORS];
        clear_sums(sum, rows * n_vec);
        for (; t + LANES <= behind; t += LANES, at += LANES * size) {
            ptrdiff_t row = m->base.b_row, a_row = m->base.a.row;
            if (kind == AS_OPERANDS || rows == 1) {
                /* or compilers keep their multiples, in registers of vectors */
                __asm__ volatile("" : "+r"(row), "+r"(a_row));
            }
            if (t * size % CACHE_LINE == 0) {
                if (origin != OF_KEYS && m->after != NULL) {
                    const char *ahead = at + LINES_AHEAD;
                    ahead += ahead < end ? 0 : m->after - end;
                    prefetch_lines(ahead, row, n_vec * LANES);
                }
                if (origin != OF_WEIGHTS) {
                    prefetch_line(&m->other, t * size);
                }
            }
            add_columns(sum, at, row, rows, n_vec, m->base.a.at + t, a_row, kind);
            if (origin != OF_WEIGHTS && m->touch != NULL) {
                touch(m->touch + n_vec * LANES * size * t, lines, m->touch_as, rows);
            }
        }
        for (; t < behind; t++, at += size) {
            ptrdiff_t row = m->base.b_row, a_row = m->base.a.row;
            UNROLLED for (int v = 0; v < n_vec; v++)
            {
                v_operand x = load_column(at + v * LANES * row, row, kind);
                add_products(sum + v * rows, &x, 1, rows, m->base.a.at + t, a_row);
            }
        }
        UNROLLED for (int i = 0; i < rows * n_vec; i++)
        {
            real *c = m->base.c + i % rows * m->base.c_row + i / rows * LANES;
            v_store(c, add ? v_add(v_load(c), sum[i]) : sum[i]);
        }
        add = true;
    } while (t < n_steps);
}

/* A vector of lines. Asking at each line would slow two or four rows down: they have two loops. */
static INLINE void
multiply_lines_by_origin(const lines_product *m, const int rows, const storage kind,
                         const line_origin origin)
{
    if (origin != OF_EITHER || kind != AS_OPERANDS || LANES == 1) {
        multiply_lines_of_rows(m, rows, 1, kind, origin);
    } else if (m->after == NULL) {
        multiply_lines_of_rows(m, rows, 1, kind, OF_KEYS);
    } else {
        multiply_lines_of_rows(m, rows, 1, kind, OF_WEIGHTS);
    }
}

/* How many vectors of lines so many rows take at a time: two if sums wait for one another. Of single
 * numbers two would gain nothing. Two rows of halves wait with AVX2, whose floats are faster. */
static INLINE int
most_line_vectors(ptrdiff_t rows, const storage kind)
{
    bool halves = LANES == 8 && kind != AS_OPERANDS;

    return LANES > 1 && (rows == 1 || (rows == 2 && halves)) ? 2 : 1;
}

static INLINE void
multiply_lines_as(const lines_product *m, int n_vec, const storage kind,
                  const line_origin origin)
{
    switch (m->base.n_rows) {
    case 1:
        if (n_vec == 2 && most_line_vectors(1, kind) == 2) {
            multiply_lines_of_rows(m, 1, 2, kind, origin);
        } else {
            multiply_lines_of_rows(m, 1, 1, kind, origin);
        }
        break;
    case 2:
        if (n_vec == 2 && most_line_vectors(2, kind) == 2) {
            multiply_lines_of_rows(m, 2, 2, kind, origin);
        } else {
            multiply_lines_by_origin(m, 2, kind, origin);
        }
        break;
    case 4: multiply_lines_by_origin(m, 4, kind, origin); break;
    default: multiply_lines_of_rows(m, 8, 1, kind, origin); break;
    }
}

static ALIGNED ONE_COPY void
multiply_lines(const lines_product *m, int n_vec, storage kind)
{
    switch (kind) {
#if REAL_BITS == 32 && TERMS == 1
    case AS_F16: multiply_lines_as(m, n_vec, AS_F16, OF_EITHER); break;
    case AS_BF16: multiply_lines_as(m, n_vec, AS_BF16, OF_EITHER); break;
#elif TERMS > 1
    case AS_TWO_ROWS: /* of rows of W, and of values */
#endif
    case AS_OPERANDS: multiply_lines_as(m, n_vec, AS_OPERANDS, OF_EITHER); break;
    }
}

static ALIGNED ONE_COPY void
multiply_lines_of_keys(const lines_product *m, int n_vec)
{
    multiply_lines_as(m, n_vec, AS_OPERANDS, OF_KEYS);
}

static ALIGNED ONE_COPY void
multiply_lines_of_weights(const lines_product *m, int n_vec)
{
    multiply_lines_as(m, n_vec, AS_OPERANDS, OF_WEIGHTS);
}

/* The product for 1, 2, 4 or 8 rows with as many vectors of lines as most_line_vectors says, or with
 * one. Doubles have a copy for each origin: asking would take a tenth of their time. */
static INLINE void
multiply_key_lines(const lines_product *m, int n_vec, storage kind)
{
    if (REAL_BITS == 64) {
        multiply_lines_of_keys(m, n_vec);
    } else {
        multiply_lines(m, n_vec, kind);
    }
}

static INLINE void
multiply_weight_lines(const lines_product *m, int n_vec, storage kind)
{
    if (REAL_BITS == 64) {
        multiply_lines_of_weights(m, n_vec);
    } else {
        multiply_lines(m, n_vec, kind);
    }
}

#endif
