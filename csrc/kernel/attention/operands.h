/* Keys and values as operands of vector products; and sums for values that are masked
 * and not finite, since 0 * NaN must not reach a result. */
#ifndef ATTN_KERNEL_ATTENTION_OPERANDS_H
#define ATTN_KERNEL_ATTENTION_OPERANDS_H

#include "core/paths.h"
#include "kernel/attention/keys.h"
#include "kernel/gemm/product.h"

/* Columns from `column` on, n_columns of them, of a run of keys as rows of operands: where they
 * lie, if they are that, or brought into the slab. */
static matrix
fetch_keys(work *w, const key_run *keys, ptrdiff_t column, ptrdiff_t n_columns)
{
    const char *from = keys->at + column * keys->array->column_stride;

    return fetch_lines(keys->array, from, keys->n, keys->dim, n_columns, w->rows.slab);
}

/* A block's keys, or values, as rows of operands that are converted once for all tasks of the head;
 * NULL if they have no place. */
static const operand *
keep_rows(work *w, ptrdiff_t first, bool value)
{
    if (!KEEPS_ROWS ||
        !has_place(w, first, value ? w->kept_value_blocks : w->kept_key_blocks)) {
        return NULL;
    }
    const ptrdiff_t index = first / ATTN_BLOCK, n = keys_to_keep(w, first);
    const uint64_t bit = UINT64_C(1) << index;
    key_run run = value ? values_of(&w->rows, first, n) : keys_of(&w->rows, first, n);
    uint64_t *has = value ? &w->kept.has_values : &w->kept.has_keys;
    operand *at =
        (value ? w->kept_values : w->kept_keys) + index * run.dim * ATTN_BLOCK;

    if ((*has & bit) == 0) {
        fetch_lines(run.array, run.at, n, run.dim, run.dim, at);
        *has |= bit;
    } else {
        attn_count_path(ATTN_PATH_KEPT_ROWS);
    }
    return at;
}

/* Brings keys into the slab, and zeros in the place of those that whole vectors lack. */
static const char *
gather_keys(work *w, const key_run *keys)
{
    const attn_array *key = keys->array;
    const char *from = keys->at;
    operand *to = w->rows.slab;
    ptrdiff_t lacking = round_up(keys->n, LANES) - keys->n;

    for (ptrdiff_t j = 0; j < keys->n; j++, from += key->row_stride) {
        stage_row(to, from, key->column_stride, keys->dim, key->dtype);
        to += w->rows.key_width;
    }
    memset(to, 0, (size_t)(lacking * w->rows.key_width) * sizeof(operand));
    return (const char *)w->rows.slab;
}

/* Columns from `column` on of a run of values. */
static matrix
fetch_values(work *w, const key_run *values, ptrdiff_t column, ptrdiff_t n_columns,
             ptrdiff_t width)
{
    const char *from = values->at + column * values->array->column_stride;

    return fetch_rows(values->array, from, values->n, values->dim, n_columns, width,
                      w->rows.slab);
}

/* start + the sum of weights[k] * values[k][d] over the steps k < n, of terms that a row
 * may see; the first is key `first` of the block. */
static real
sum_seen_values(const work *w, ptrdiff_t row, ptrdiff_t first, ptrdiff_t n,
                const operand *weights, ptrdiff_t step, matrix values, ptrdiff_t d,
                real start)
{
    v_real sum = v_set1(start);
    real lanes[LANES];

    for (ptrdiff_t k = 0; k < n; k++) {
        ptrdiff_t key = first + k * TERMS;
        operand value = keep_terms(values.at[k * values.row + d],
                                   w->rows.see[row][key / 64] >> (key % 64));
        sum = v_dot(v_set1_operand(weights[k * step]), v_set1_operand(value), sum);
    }
    v_store(lanes, sum);
    return lanes[0];
}

#endif
