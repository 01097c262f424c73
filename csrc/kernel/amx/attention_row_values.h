/* Row form: weighted sums of values, O[row][d], on a matrix unit, a line of columns at
 * a time. With one or two rows, vectors compute the sums instead, in the unit's order:
 * then memory is the limit, and vectors read it row after row, where the unit reads
 * some columns of all rows. */
#ifndef ATTN_KERNEL_AMX_ATTENTION_ROW_VALUES_H
#define ATTN_KERNEL_AMX_ATTENTION_ROW_VALUES_H

#include "kernel/amx/product.h"
#include "kernel/attention/row_form/weights.h"

enum { CHAINED = 4 /* cache lines of sums at a time, for all rows */ };

/* Adds UNIT_TERMS weighted values from an address on to the sums of n_lines cache lines of
 * columns, as the unit does: even terms make a chain from 0, and so do odd ones. `weights` are the
 * operands of the first row. Values `ahead` bytes behind are prefetched, unless it is 0. Of each
 * line the sums have the even columns first: so they come out of pairs. */
static INLINE void
chain_values(const operand *weights, const char *at, ptrdiff_t value_row,
             ptrdiff_t ahead, const int rows, const int n_lines, real *sums,
             ptrdiff_t width)
{
    v_real even[2 * CHAINED], odd[2 * CHAINED];

    UNROLLED for (int i = 0; i < 2 * rows * n_lines; i++)
    {
        even[i] = odd[i] = v_set1(0);
    }
    for (int k = 0; k < UNIT_OPERANDS; k++, at += TERMS * value_row) {
        ONE_BY_ONE;
        UNROLLED for (int line = 0; line < n_lines; line++)
        {
            v_pairs low = v_load_pairs(at + line * CACHE_LINE);
            v_pairs high = v_load_pairs(at + value_row + line * CACHE_LINE);
            if (ahead != 0) {
                __builtin_prefetch(at + ahead + line * CACHE_LINE);
                __builtin_prefetch(at + ahead + value_row + line * CACHE_LINE);
            }
            UNROLLED for (int r = 0; r < rows; r++)
            {
                v_operand p = v_set1_operand(weights[r * ATTN_BLOCK + k]);
                int i = 2 * (r * n_lines + line);
                even[i] = v_fma(u_even(p), u_even(low), even[i]);
                even[i + 1] = v_fma(u_even(p), u_odd(low), even[i + 1]);
                odd[i] = v_fma(u_odd(p), u_even(high), odd[i]);
                odd[i + 1] = v_fma(u_odd(p), u_odd(high), odd[i + 1]);
            }
        }
    }
    UNROLLED for (int i = 0; i < 2 * rows * n_lines; i++)
    {
        real *to = sums + i / (2 * n_lines) * width + i % (2 * n_lines) * LANES;
        v_store(to, v_add(v_load(to), v_add(even[i], odd[i])));
    }
}

/* Adds UNIT_TERMS weighted values, from key k of the block on, to all sums of each row. */
static INLINE void
chain_group(work *w, const key_run *values, ptrdiff_t k, const int rows)
{
    const int at_once = CHAINED / rows;
    const char *at = values->at;
    ptrdiff_t ahead = w->reads_ahead ? UNIT_TERMS * values->array->row_stride : 0;
    ptrdiff_t row = values->array->row_stride, width = w->value_width, d = 0;
    const operand *weights = (const operand *)(const void *)w->scores + k / TERMS;

    for (; d + at_once * UNIT_SQUARE <= width; d += at_once * UNIT_SQUARE) {
        chain_values(weights, at + d * (ptrdiff_t)sizeof(uint16_t), row, ahead, rows,
                     at_once, w->row_sums + d, width);
    }
    if (rows == 1 && d + 2 * UNIT_SQUARE <= width) {
        chain_values(weights, at + d * (ptrdiff_t)sizeof(uint16_t), row, ahead, rows, 2,
                     w->row_sums + d, width);
        d += 2 * UNIT_SQUARE;
    }
    for (; d < width; d += UNIT_SQUARE) {
        chain_values(weights, at + d * (ptrdiff_t)sizeof(uint16_t), row, ahead, rows, 1,
                     w->row_sums + d, width);
    }
}

/* Are a block's values added up by vectors? */
static bool
has_value_chains(const work *w, const block *b)
{
    return w->rows.task->n_rows <= STREAM_ROWS && b->coverage == ATTN_SEE_ALL &&
           (b->end - b->first) % UNIT_TERMS == 0 &&
           w->rows.p->value_dim % UNIT_SQUARE == 0 &&
           reads_in_place(&w->rows.p->value, w->rows.p->value_dim, AS_TWO_ROWS);
}

/* Columns of values from d on, those of UNIT_LINE tiles at most, for the products of few rows. */
typedef struct {
    ptrdiff_t d;
    ptrdiff_t n_columns;
    bool zipped; /* in the order of u_zip_element */
} value_line;

/* Brings a line of up to UNIT_TERMS values into the slab as pairs, with 0 for missing ones. */
static void
stage_value_line(work *w, const value_line *line, const key_run *values)
{
    static const uint16_t none[UNIT_SQUARE];
    const attn_array *value = values->array;
    const char *from = values->at + line->d * value->column_stride;
    ptrdiff_t n = values->n, used = (n + TERMS - 1) / TERMS;

    if (!line->zipped) {
        fetch_rows(value, from, n, values->dim, line->n_columns, LINE_COLUMNS,
                   w->rows.slab);
        memset(w->rows.slab + used * LINE_COLUMNS, 0,
               (size_t)((UNIT_OPERANDS - used) * LINE_COLUMNS) * sizeof(operand));
        return;
    }
    for (ptrdiff_t i = 0; i < UNIT_OPERANDS; i++, from += TERMS * value->row_stride) {
        const uint16_t *low = (const uint16_t *)(const void *)from;
        const uint16_t *up = (const uint16_t *)(const void *)(from + value->row_stride);
        operand *to = w->rows.slab + i * LINE_COLUMNS;
        for (ptrdiff_t c = 0; c < line->n_columns; c += UNIT_SQUARE) {
            const uint16_t *a = TERMS * i < n ? low + c : none;
            const uint16_t *b = TERMS * i + 1 < n ? up + c : none;
            v_store_pairs(to + c, u_zip(a, b, false));
            v_store_pairs(to + c + LANES, u_zip(a, b, true));
        }
    }
}

/* Replaces staged values by 0 where a row may not see them; `key` is of the block. */
static void
keep_row_values(const work *w, ptrdiff_t row, ptrdiff_t key)
{
    for (ptrdiff_t i = 0; i < UNIT_OPERANDS * LINE_COLUMNS; i++) {
        ptrdiff_t k = key + i / LINE_COLUMNS * TERMS;
        w->rows.slab[i] =
            keep_terms(w->rows.slab[i], w->rows.see[row][k / 64] >> (k % 64));
    }
}

/* The sums of a line over the block's keys, for all rows; or, if `seen`, for one of them, of
 * what it may see. Returns whether all values are finite, if some may not be seen. */
static bool
sum_line(work *w, const block *b, const value_line *line, ptrdiff_t row,
         const bool seen, real *weight_sums, real *sums)
{
    const char *weights = (const char *)w->scores;
    ptrdiff_t n_keys = b->end - b->first;
    bool finite = true;

    u_clear_line();
    for (ptrdiff_t k = 0; k < n_keys; k += UNIT_TERMS) {
        if (line->d == 0 && !seen) {
            begin_group(w, b, k, weight_sums);
        }
        key_run values =
            values_of(&w->rows, b->first + k, least(n_keys - k, UNIT_TERMS));
        stage_value_line(w, line, &values);
        if (seen) {
            keep_row_values(w, row, k);
        } else if (b->coverage != ATTN_SEE_ALL) {
            matrix all = {w->rows.slab, LINE_COLUMNS};
            finite = finite && all_finite(all, round_up(line->n_columns, LANES), 0,
                                          UNIT_OPERANDS);
        }
        u_publish(w->rows.slab);
        u_multiply_line(weights + k * (ptrdiff_t)sizeof(uint16_t),
                        ATTN_BLOCK * sizeof(real), (const char *)w->rows.slab,
                        LINE_COLUMNS * sizeof(operand));
    }
    u_store_line(sums, LINE_COLUMNS * sizeof(real));
    return finite;
}

/* Copies one row of a line's sums, in the order of columns. */
static void
take_line(const value_line *line, const real *sums, real *to)
{
    for (ptrdiff_t c = 0; c < line->n_columns; c += UNIT_SQUARE) {
        v_real low = v_load(sums + c), high = v_load(sums + c + LANES);
        if (line->zipped) {
            u_unzip(&low, &high);
        }
        v_store(to + c, low);
        if (c + LANES < line->n_columns) {
            v_store(to + c + LANES, high);
        }
    }
}

/* Sums of the block's weights, and of its weighted values, by vectors. */
static NOINLINE void
sum_in_chains(work *w, const block *b, real *weight_sums)
{
    ptrdiff_t n_rows = w->rows.task->n_rows;
    uint32_t control;

    memset(w->row_sums, 0, (size_t)(n_rows * w->value_width) * sizeof(real));
    for (ptrdiff_t k = 0; k < b->end - b->first; k += KEY_GROUP) {
        key_run values = values_of(&w->rows, b->first + k, KEY_GROUP);
        begin_group(w, b, k, weight_sums);
        control = u_flush();
        if (n_rows == 1) {
            chain_group(w, &values, k, 1);
        } else {
            chain_group(w, &values, k, 2);
        }
        u_keep(control);
    }
    for (ptrdiff_t d = 0; d < n_rows * w->value_width; d += UNIT_SQUARE) {
        v_real even = v_load(w->row_sums + d), odd = v_load(w->row_sums + d + LANES);
        u_weave(&even, &odd);
        v_store(w->row_sums + d, even);
        v_store(w->row_sums + d + LANES, odd);
    }
}

/* Sums of the block's weights, and of its weighted values, on the unit or by vectors. */
static void
sum_rows(work *w, const block *b, real *weight_sums)
{
    const attn_array *value = &w->rows.p->value;
    bool adjacent = value->column_stride == (ptrdiff_t)sizeof(uint16_t);
    real sums[UNIT_ROWS * LINE_COLUMNS];
    value_line line = {.d = 0};

    if (has_value_chains(w, b)) {
        sum_in_chains(w, b, weight_sums);
        return;
    }
    take_columns(&w->unit_columns, UNIT_LANES);
    do { /* Dv may be 0 */
        line.n_columns = least(w->rows.p->value_dim - line.d, LINE_COLUMNS);
        line.zipped = adjacent && line.n_columns % UNIT_SQUARE == 0;
        bool finite = sum_line(w, b, &line, 0, false, weight_sums, sums);
        for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
            if (!finite) {
                sum_line(w, b, &line, r, true, NULL, sums);
            }
            take_line(&line, sums + r * LINE_COLUMNS,
                      w->row_sums + r * w->value_width + line.d);
        }
        line.d += LINE_COLUMNS;
    } while (line.d < w->rows.p->value_dim);
}

#endif
