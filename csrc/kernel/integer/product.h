/* Products of rows with a part of a panel, in registers: a few rows and vectors of columns at
 * a time, for all of the part's rows of W. */
#ifndef ATTN_KERNEL_INTEGER_PRODUCT_H
#define ATTN_KERNEL_INTEGER_PRODUCT_H

#include "kernel/integer/task.h"

enum {
    QUADS = DOTS,                           /* vectors of quads of LANES columns */
    QUADS_BYTES = LANES * ATTN_QUAD / DOTS, /* of such a vector */
    AHEAD =
        2048 /* bytes: what one row takes from memory is prefetched that far ahead */
};

/* A part of a panel, and some rows. */
typedef struct {
    const int8_t *codes;  /* (n / ATTN_QUAD, PANEL, ATTN_QUAD) */
    ptrdiff_t n;          /* rows of W */
    const float *scale;   /* (PANEL) */
    const float *minimum; /* (PANEL), or NULL */
    const term *terms;    /* of the first row, from the part on, or */
    const float *reals;   /* what it is unless rounded; then from row to row */
    ptrdiff_t row;
    const float *scales, *minimum_by; /* of the first row */
    const int32_t *totals;
    ptrdiff_t n_parts; /* from row to row of these */
    float *output;     /* (rows, OUTPUT_ROW), from the panel on */
} integer_product;

/* output += what a part adds to row r: its sum times scales, and minimums. */
static INLINE void
add_sum(const integer_product *m, ptrdiff_t r, ptrdiff_t column, v_real sum)
{
    float *to = m->output + r * OUTPUT_ROW + column;
    ptrdiff_t at = r * m->n_parts;
    v_real scale = v_load(m->scale + column);

    if (m->terms != NULL) {
        scale = v_mul(v_set1(m->scales[at]), scale);
    }
    sum = v_fma(scale, sum, v_load(to));
    if (m->minimum != NULL) {
        sum = v_fma(v_load(m->minimum + column), v_set1(m->minimum_by[at]), sum);
    }
    v_store(to, sum);
}

/* Integers: n_rows from row r on, n_reals vectors of columns from `column` on. */
static INLINE void
add_dots(const integer_product *m, int n_rows, int n_reals, ptrdiff_t r,
         ptrdiff_t column)
{
    v_dots sums[INT8_ROWS][PANEL_REALS * DOTS];
    const int8_t *codes = m->codes + column * ATTN_QUAD;
    const term *x = m->terms + r * m->row;

    UNROLLED for (int i = 0; i < n_rows; i++)
    {
        UNROLLED for (int j = 0; j < n_reals * DOTS; j++)
        {
            sums[i][j] = v_begin_dots(m->totals[(r + i) * m->n_parts]);
        }
    }
    for (ptrdiff_t k = 0; k < m->n; k += ATTN_QUAD, codes += QUAD_ROW, x += ATTN_QUAD) {
        v_four four[INT8_ROWS];
        UNROLLED for (int i = 0; i < n_rows; i++)
        {
            four[i] = v_load_four(x + i * m->row);
        }
        UNROLLED for (int j = 0; j < n_reals * DOTS; j++)
        {
            v_quads w = v_load_quads(codes + j * QUADS_BYTES);
            UNROLLED for (int i = 0; i < n_rows; i++)
            {
                sums[i][j] = v_add_dots(sums[i][j], w, four[i]);
            }
        }
        if (n_rows == 1) {
            UNROLLED for (int at = 0; at < QUAD_ROW; at += 64)
            {
                __builtin_prefetch(codes + AHEAD + at, 0, 2);
            }
        }
    }
    UNROLLED for (int i = 0; i < n_rows; i++)
    {
        UNROLLED for (int j = 0; j < n_reals; j++)
        {
            add_sum(m, r + i, column + j * LANES, v_float_dots(sums[i] + j * DOTS));
        }
    }
}

/* The same with numbers that are not rounded. */
static INLINE void
add_reals(const integer_product *m, int n_rows, int n_reals, ptrdiff_t r,
          ptrdiff_t column)
{
    v_real sums[FLOAT_ROWS][PANEL_REALS];
    const int8_t *codes = m->codes + column * ATTN_QUAD;
    const float *x = m->reals + r * m->row;

    UNROLLED for (int i = 0; i < n_rows; i++)
    {
        UNROLLED for (int j = 0; j < n_reals; j++)
        {
            sums[i][j] = v_set1(0);
        }
    }
    for (ptrdiff_t k = 0; k < m->n; k += ATTN_QUAD, codes += QUAD_ROW, x += ATTN_QUAD) {
        UNROLLED for (int t = 0; t < ATTN_QUAD; t++)
        {
            v_real w[PANEL_REALS];
            UNROLLED for (int j = 0; j < n_reals; j++)
            {
                w[j] = v_float_codes(codes + j * LANES * ATTN_QUAD, t);
            }
            UNROLLED for (int i = 0; i < n_rows; i++)
            {
                v_real one = v_set1(x[i * m->row + t]);
                UNROLLED for (int j = 0; j < n_reals; j++)
                {
                    sums[i][j] = v_fma(w[j], one, sums[i][j]);
                }
            }
        }
        if (n_rows == 1) {
            UNROLLED for (int at = 0; at < QUAD_ROW; at += 64)
            {
                __builtin_prefetch(codes + AHEAD + at, 0, 2);
            }
        }
    }
    UNROLLED for (int i = 0; i < n_rows; i++)
    {
        UNROLLED for (int j = 0; j < n_reals; j++)
        {
            add_sum(m, r + i, column + j * LANES, sums[i][j]);
        }
    }
}

/* All of n rows: in tiles, of which each row that is left is one. */
static NOINLINE void
add_integers(const integer_product *m, ptrdiff_t n)
{
    ptrdiff_t whole = n - n % INT8_ROWS;

    for (ptrdiff_t r = 0; r < whole; r += INT8_ROWS) {
        for (ptrdiff_t k = 0; k < PANEL; k += INT8_REALS * LANES) {
            add_dots(m, INT8_ROWS, INT8_REALS, r, k);
        }
    }
    for (ptrdiff_t r = whole; r < n; r++) {
        for (ptrdiff_t k = 0; k < PANEL; k += INT8_ONE * LANES) {
            add_dots(m, 1, INT8_ONE, r, k);
        }
    }
}

static NOINLINE void
add_floats(const integer_product *m, ptrdiff_t n)
{
    ptrdiff_t whole = n - n % FLOAT_ROWS;

    for (ptrdiff_t r = 0; r < whole; r += FLOAT_ROWS) {
        for (ptrdiff_t k = 0; k < PANEL; k += FLOAT_REALS * LANES) {
            add_reals(m, FLOAT_ROWS, FLOAT_REALS, r, k);
        }
    }
    for (ptrdiff_t r = whole; r < n; r++) {
        add_reals(m, 1, PANEL_REALS, r, 0);
    }
}

_Static_assert(PANEL_REALS % INT8_REALS == 0 && PANEL_REALS % FLOAT_REALS == 0,
               "whole tiles");

#endif
