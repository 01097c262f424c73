/* What products of integers and of floats share. Both multiply rows by a chunk of a panel in
 * registers: a few rows and vectors of columns at a time, for all of the chunk's rows of W. */
#ifndef ATTN_KERNEL_INTEGER_PRODUCT_H
#define ATTN_KERNEL_INTEGER_PRODUCT_H

#include "kernel/integer/weights.h"

/* A chunk of a panel, and some rows. */
typedef struct {
    const char *codes; /* packed */
    void *ready;       /* the same, or room for them */
    int bits, zero;    /* of these codes */
    ptrdiff_t n, part; /* rows of W in all parts, and in one; the last may be shorter */
    const float *scale;   /* (parts, PANEL) */
    const float *minimum; /* (parts, PANEL), or NULL */
    const term *terms;    /* of the first row, from the chunk on, or */
    const float *reals;   /* what it is unless rounded; then from row to row */
    ptrdiff_t row;
    const float *scales, *minimum_by; /* of the first row */
    const int32_t *begins;
    ptrdiff_t n_parts; /* from row to row of these */
    float *output;     /* (rows, OUTPUT_ROW), from the panel on */
    bool is_first;     /* of a panel's chunks: sums begin */
} integer_product;

/* sums = n_rows rows of the output from row r on, or 0 where sums begin. */
static INLINE void
load_outputs(const integer_product *m, v_real sums[][PANEL_REALS], const int n_rows,
             const int n_reals, ptrdiff_t r, ptrdiff_t column, bool begins)
{
    const float *from = m->output + r * OUTPUT_ROW + column;

    UNROLLED for (int i = 0; i < n_rows; i++, from += OUTPUT_ROW)
    {
        UNROLLED for (int j = 0; j < n_reals; j++)
        {
            sums[i][j] = begins ? v_set1(0) : v_load(from + j * LANES);
        }
    }
}

/* The output = sums. Of NaN's bit patterns results have one, on every CPU. */
static INLINE void
store_outputs(const integer_product *m, v_real sums[][PANEL_REALS], const int n_rows,
              const int n_reals, ptrdiff_t r, ptrdiff_t column)
{
    float *to = m->output + r * OUTPUT_ROW + column;

    UNROLLED for (int i = 0; i < n_rows; i++, to += OUTPUT_ROW)
    {
        UNROLLED for (int j = 0; j < n_reals; j++)
        {
            v_real sum = sums[i][j];
            v_store(to + j * LANES, v_select(v_is_nan(sum), v_set1(NAN), sum));
        }
    }
}

/* sum plus a part's products of row r, times scales, and its minimums. `at` is that of the part's
 * scales in the chunk, from the column on. */
static INLINE v_real
add_part(const integer_product *m, ptrdiff_t at, ptrdiff_t r, ptrdiff_t part,
         v_real products, v_real sum)
{
    v_real scale = v_load(m->scale + at);

    if (m->terms != NULL) {
        scale = v_mul(v_set1(m->scales[r * m->n_parts + part]), scale);
    }
    sum = v_fma(scale, products, sum);
    if (m->minimum != NULL) {
        sum = v_fma(v_load(m->minimum + at),
                    v_set1(m->minimum_by[r * m->n_parts + part]), sum);
    }
    return sum;
}

/* Bytes from a step's rows of W to those of the next, and bytes of a ready code. */
static INLINE ptrdiff_t
step_of(const code_form form, const ptrdiff_t ready)
{
    return QUAD_ROW * (form == READY ? QUADS * ready : rows_of_quads(form));
}

/* Cache lines of such a step, of packed codes. */
static INLINE int
lines_of(const code_form form)
{
    return form == READY ? 0 : QUAD_ROW * rows_of_quads(form) / LINE;
}

/* Prefetches n lines; returns where the next one is. */
static INLINE const char *
prefetch_lines(const char *next, const int n)
{
    UNROLLED for (int i = 0; i < n; i++, next += LINE)
    {
        __builtin_prefetch(next, 0, 2);
    }
    return next;
}

#endif
