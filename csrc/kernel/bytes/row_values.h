/* Row form: the products of few rows of codes with values, which are read in the order of memory. */
#ifndef ATTN_KERNEL_BYTES_ROW_VALUES_H
#define ATTN_KERNEL_BYTES_ROW_VALUES_H

#include "kernel/bytes/rows.h"

/* Adds to the sums of `zips` times NARROW columns from d on, or of as many as there are, what
 * values first .. end - 1 make, which lie at an address. They are integers until the last one is
 * added. */
static INLINE void
sum_columns(const attn_byte_product *m, const int8_t *at, ptrdiff_t row,
            ptrdiff_t first, ptrdiff_t r, ptrdiff_t d, const int rows, const int zips)
{
    const char *codes = m->codes + 2 * r * m->code_row;
    float *sums = m->sums + r * m->line + d;
    const attn_byte_rows *b = &m->bytes;
    const int n_vec = 2 * zips;
    bool last = first + ATTN_CODE_UNIT >= b->n;
    ptrdiff_t end = last ? b->n : first + ATTN_CODE_UNIT, left = b->dim - d;
    v_sums sum[MOST_SUMS];

    UNROLLED for (int i = 0; i < rows * n_vec; i++)
    {
        ptrdiff_t column = i % n_vec * LANES;
        sum[i] = first > 0 && column < left
                     ? v_load_sums(sums + i / n_vec * m->line + column)
                     : v_zero_sums();
    }
    for (ptrdiff_t k = first; k < end; k += 2, at += 2 * row) {
        const int8_t *high = k + 1 < b->n ? at + row : at; /* times 0 */
        v_shorts weights[BYTE_ROWS], x[2];
        if (d == 0 && r == 0) {
            prefetch_after(b, k);
            prefetch_after(b, k + 1);
        }
        UNROLLED for (int i = 0; i < rows; i++)
        {
            weights[i] = v_set1_shorts(codes + 2 * (i * m->code_row + k));
        }
        UNROLLED for (int z = 0; z < zips; z++)
        {
            ptrdiff_t column = z * NARROW;
            v_zip(x, v_load_narrow(at + column), v_load_narrow(high + column));
            UNROLLED for (int i = 0; i < 2 * rows; i++)
            {
                v_sums *to = sum + i / 2 * n_vec + 2 * z + i % 2;
                *to = v_add_pairs(*to, weights[i / 2], x[i % 2]);
            }
        }
    }
    UNROLLED for (int i = 0; i < rows * n_vec; i++)
    {
        ptrdiff_t column = i % n_vec * LANES, at_row = i / n_vec;
        float *to = sums + at_row * m->line + column;
        if (column >= left) {
            continue;
        }
        if (last) {
            v_real product = v_mul(v_float_sums(sum[i]), v_set1(m->unit[r + at_row]));
            v_store(to, v_mul(product, v_set1(m->back[r + at_row])));
        } else {
            v_store_sums(to, sum[i]);
        }
    }
}

/* Copies the columns from d on, fewer than NARROW, of a unit of values from `first` on. */
static NOINLINE void
copy_columns(const attn_byte_rows *b, ptrdiff_t first, ptrdiff_t d, int8_t *to)
{
    const ptrdiff_t end = first + ATTN_CODE_UNIT < b->n ? first + ATTN_CODE_UNIT : b->n;

    for (ptrdiff_t k = first; k < end; k++, to += NARROW) {
        memset(to, 0, NARROW);
        copy_end(to, b->at + k * b->row + d, b->dim - d, d);
    }
}

/* As sum_columns, for up to NARROW columns. */
static INLINE void
sum_narrow_columns(const attn_byte_product *m, ptrdiff_t first, ptrdiff_t r,
                   ptrdiff_t d, const int rows)
{
    int8_t copies[(1 + ATTN_CODE_UNIT) * NARROW];
    const attn_byte_rows *b = &m->bytes;
    const int8_t *at = b->at + first * b->row + d;
    ptrdiff_t row = b->row;

    if (b->dim - d < NARROW) {
        at = copies + NARROW;
        row = NARROW;
        copy_columns(b, first, d, copies + NARROW);
    }
    sum_columns(m, at, row, first, r, d, rows, 1);
}

static NOINLINE void
sum_narrow_columns_of_row(const attn_byte_product *m, ptrdiff_t first, ptrdiff_t r,
                          ptrdiff_t d)
{
    sum_narrow_columns(m, first, r, d, 1);
}

/* Adds weights first .. end - 1 of some rows to their totals: chains side by side. */
static INLINE void
add_weights_of(const attn_byte_product *m, ptrdiff_t r, ptrdiff_t first, ptrdiff_t end,
               const int rows)
{
    const float *weights = m->weights + r * ATTN_BLOCK;
    float total[4];

    UNROLLED for (int i = 0; i < rows; i++)
    {
        total[i] = m->totals[r + i];
    }
    for (ptrdiff_t k = first; k < end; k++) {
        UNROLLED for (int i = 0; i < rows; i++)
        {
            ONE_BY_ONE;
            total[i] += weights[i * ATTN_BLOCK + k];
        }
    }
    UNROLLED for (int i = 0; i < rows; i++)
    {
        m->totals[r + i] = total[i];
    }
}

/* The same of rows from r on, before r_end. */
static INLINE void
add_weights(const attn_byte_product *m, ptrdiff_t r, ptrdiff_t r_end, ptrdiff_t first,
            ptrdiff_t end)
{
    for (; r + 4 <= r_end; r += 4) {
        add_weights_of(m, r, first, end, 4);
    }
    for (; r < r_end; r++) {
        add_weights_of(m, r, first, end, 1);
    }
}

static INLINE void
sum_values(const attn_byte_product *m, ptrdiff_t first, const int rows)
{
    const int fit = MOST_SUMS / (2 * rows), zips = fit < 4 ? fit : 4;
    const attn_byte_rows *b = &m->bytes;

    for (ptrdiff_t r = 0; r < m->n_rows; r += rows) {
        ptrdiff_t d = 0;
        for (; zips > 1 && d + zips * NARROW <= b->dim; d += zips * NARROW) {
            sum_columns(m, b->at + first * b->row + d, b->row, first, r, d, rows, zips);
        }
        for (; zips == 1 && d < b->dim; d += NARROW) {
            sum_narrow_columns(m, first, r, d, rows);
        }
        for (; d < b->dim; d += NARROW) {
            for (int i = 0; i < rows; i++) {
                sum_narrow_columns_of_row(m, first, r + i, d);
            }
        }
    }
}

#endif
