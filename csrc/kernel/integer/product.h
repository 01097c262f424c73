/* What products of integers and of floats share. Both multiply rows by a chunk of a panel in
 * registers: a few rows and vectors of columns at a time, for all of the chunk's rows of W. */
#ifndef ATTN_KERNEL_INTEGER_PRODUCT_H
#define ATTN_KERNEL_INTEGER_PRODUCT_H

#include "kernel/integer/weights.h"

/* A chunk of a panel, and some rows. */
typedef struct {
    const void *codes; /* packed or ready */
    int zero;          /* of codes of 4 bits */
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
} integer_product;

/* sums = n_rows rows of the output from row r on, or the output = sums. */
static INLINE void
load_outputs(const integer_product *m, v_real sums[][PANEL_REALS], const int n_rows,
             const int n_reals, ptrdiff_t r, ptrdiff_t column)
{
    UNROLLED for (int i = 0; i < n_rows; i++)
    {
        UNROLLED for (int j = 0; j < n_reals; j++)
        {
            sums[i][j] = v_load(m->output + (r + i) * OUTPUT_ROW + column + j * LANES);
        }
    }
}

static INLINE void
store_outputs(const integer_product *m, v_real sums[][PANEL_REALS], const int n_rows,
              const int n_reals, ptrdiff_t r, ptrdiff_t column)
{
    UNROLLED for (int i = 0; i < n_rows; i++)
    {
        UNROLLED for (int j = 0; j < n_reals; j++)
        {
            v_store(m->output + (r + i) * OUTPUT_ROW + column + j * LANES, sums[i][j]);
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

static INLINE void
prefetch_codes(const char *codes, const int n)
{
    UNROLLED for (int at = 0; at < n; at += 64)
    {
        __builtin_prefetch(codes + AHEAD + at, 0, 2);
    }
}

/* Bytes from ATTN_CODE_ROWS rows of W to the next, and of a column in them. */
static INLINE ptrdiff_t
step_of(const code_form form, const ptrdiff_t ready)
{
    return QUAD_ROW * (form == READY ? 2 * ready : form == CODES_8 ? 2 : 1);
}

#endif
