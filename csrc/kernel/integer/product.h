/* What products by vectors and on a matrix unit share: a chunk of a panel, its factors, and the
 * sums of the output. */
#ifndef ATTN_KERNEL_INTEGER_PRODUCT_H
#define ATTN_KERNEL_INTEGER_PRODUCT_H

#include "kernel/integer/weights.h"

/* A chunk of a panel, and some rows. */
typedef struct {
    const char *codes; /* packed */
    void *ready;       /* the same, or room for them */
    int bits, zero;    /* of these codes */
    const int8_t *values;
    ptrdiff_t n, part; /* rows of W in all parts, and in one; the last may be shorter */
    attn_factors scale, minimum; /* from the first part on, but `coarse` */
    ptrdiff_t group;             /* of the first part */
    ptrdiff_t groups_per_block;
    const term *terms;                /* of the first row, from the chunk on */
    ptrdiff_t row;                    /* from line to line of these, */
    int n_digits;                     /* of which a row has so many */
    const float *scales, *minimum_by; /* of the first row */
    const int32_t *begins;
    int32_t *own; /* (parts, PANEL): for the columns of crossed products; or NULL */
    ptrdiff_t n_parts; /* from row to row, or line to line, of these */
    float *output;     /* (rows, OUTPUT_ROW), from the panel on */
    bool is_first;     /* of a panel's chunks: sums begin */
} integer_product;

/* sums = n_rows rows of the output from row r on, or 0 where sums begin. */
static INLINE void
load_outputs(const integer_product *m, v_real sums[][PANEL_VECTORS], const int n_rows,
             const int n_vec, ptrdiff_t r, ptrdiff_t column, bool begins)
{
    const float *from = m->output + r * OUTPUT_ROW + column;

    UNROLLED for (int i = 0; i < n_rows; i++, from += OUTPUT_ROW)
    {
        UNROLLED for (int j = 0; j < n_vec; j++)
        {
            sums[i][j] = begins ? v_set1(0) : v_load(from + j * LANES);
        }
    }
}

/* The output = sums. Of NaN's bit patterns results have one, on every CPU. */
static INLINE void
store_outputs(const integer_product *m, v_real sums[][PANEL_VECTORS], const int n_rows,
              const int n_vec, ptrdiff_t r, ptrdiff_t column)
{
    float *to = m->output + r * OUTPUT_ROW + column;

    UNROLLED for (int i = 0; i < n_rows; i++, to += OUTPUT_ROW)
    {
        UNROLLED for (int j = 0; j < n_vec; j++)
        {
            v_real sum = sums[i][j];
            v_store(to + j * LANES, v_select(v_is_nan(sum), v_set1(NAN), sum));
        }
    }
}

/* What a part's sums of LANES columns are multiplied by. */
typedef struct {
    v_real scale, minimum;
} part_factors;

/* Which of the coarse factors a part has. */
static INLINE ptrdiff_t
block_of(const integer_product *m, ptrdiff_t part)
{
    bool are_there = m->scale.coarse != NULL || m->minimum.coarse != NULL;
    return are_there ? (m->group + part) / m->groups_per_block : 0;
}

/* A part's factors as they lie in memory. */
static INLINE part_factors
convert_part(const integer_product *m, ptrdiff_t part, ptrdiff_t block,
             ptrdiff_t column)
{
    part_factors f = {.minimum = v_set1(0)};

    f.scale = load_factors(&m->scale, part, column, block);
    if (m->minimum.fine != NULL) {
        f.minimum = load_factors(&m->minimum, part, column, block);
    }
    return f;
}

/* The same, not inlined: for parts that take long. */
static NOINLINE part_factors
call_convert_part(const integer_product *m, ptrdiff_t part, ptrdiff_t block,
                  ptrdiff_t column)
{
    return convert_part(m, part, block, column);
}

/* A part's factors. Where many rows share them, convert_factors() has made them float32. */
static INLINE part_factors
load_part(const integer_product *m, ptrdiff_t part, ptrdiff_t block, ptrdiff_t column,
          const bool converted, const bool calls)
{
    ptrdiff_t at = part * PANEL + column;
    part_factors f = {.minimum = v_set1(0)};

    if (!converted) {
        return calls ? call_convert_part(m, part, block, column)
                     : convert_part(m, part, block, column);
    }
    f.scale = v_load((const float *)(const void *)m->scale.fine + at);
    if (m->minimum.fine != NULL) {
        f.minimum = v_load((const float *)(const void *)m->minimum.fine + at);
    }
    return f;
}

/* sum plus products times a row's scale s and a column's. */
static INLINE v_real
add_scaled(v_real s, v_real scale, const bool rounds, v_real products, v_real sum)
{
    return rounds ? v_fma(v_mul(s, scale), products, sum)
                  : v_fma(scale, v_mul(s, products), sum);
}

/* sum plus a part's products of row r, times scales, and its minimums. */
static INLINE v_real
add_part(const integer_product *m, part_factors f, ptrdiff_t r, ptrdiff_t part,
         const bool rounds, v_real products, v_real sum)
{
    ptrdiff_t at = r * m->n_parts + part;

    sum = add_scaled(v_set1(m->scales[at]), f.scale, rounds, products, sum);
    if (m->minimum.fine != NULL) {
        sum = v_fma(f.minimum, v_set1(m->minimum_by[at]), sum);
    }
    return sum;
}

/* A part's products of a row of one or more lines, as core/quantized.h adds them up. */
static INLINE v_real
join_digits(v_dots dots[][PANEL_VECTORS], const int n_digits, const int j)
{
    v_real last = v_float_dots(dots[n_digits - 1][j]);

    if (n_digits == 1) {
        return last;
    }
    if (n_digits == 3) { /* both are exact, so that their sum is rounded once */
        last = v_fma(v_set1(256), v_float_dots(dots[1][j]), last);
    }
    return v_fma(v_set1(ATTN_RADIX), v_float_dots(dots[0][j]), last);
}

/* The table of values, for codes that stand for values. */
static INLINE v_table
table_of(const integer_product *m, const code_form form)
{
    static const int8_t none[ATTN_CODE_VALUES];
    return v_load_table(form == CODES_OF_VALUES ? m->values : none);
}

/* Bytes from a step's rows of W to those of the next. */
static INLINE ptrdiff_t
step_of(const code_form form)
{
    const ptrdiff_t ready = QUADS * (ptrdiff_t)sizeof(code);
    return QUAD_ROW * (form == READY ? ready : rows_of_quads(form));
}

#endif
