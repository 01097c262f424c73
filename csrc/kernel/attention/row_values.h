/* Row form: the weighted sums of a block's values, O[row][d]. */
#ifndef ATTN_KERNEL_ATTENTION_ROW_VALUES_H
#define ATTN_KERNEL_ATTENTION_ROW_VALUES_H

#include "kernel/attention/hidden.h"
#include "kernel/attention/stream.h"
#include "kernel/product_few.h"

/* Adds n weights of a row from k on to their sum, in the order of keys. */
static INLINE void
sum_weights(real *line, ptrdiff_t k, const ptrdiff_t n, real *sum)
{
    real total = *sum;

    for (ptrdiff_t i = k; i < k + n; i++) {
        total += line[i];
    }
    *sum = total;
}

/* Makes n weights of each row from k on operands, those that are kept. */
static INLINE void
finish_weights(work *w, ptrdiff_t k, const ptrdiff_t n)
{
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        if (w->p->dropout > 0) {
            drop(line + k, 0, 1, round_up(n, LANES) / LANES, w->keep[r], 0, k, 1);
        }
        pack_row_weights(line, k, n);
    }
}

/* Continues the block's sums of weights, and of weighted values, from key k on. The sum of
 * weights is a chain of its own that runs beside the products. */
static void
add_value_group(work *w, const block *b, ptrdiff_t k, real *sums)
{
    const attn_array *value = &w->p->value;
    ptrdiff_t value_dim = w->p->value_dim, width = w->value_width;
    ptrdiff_t n = least(b->end - b->first - k, KEY_GROUP);
    ptrdiff_t n_steps = (n + TERMS - 1) / TERMS;
    storage kind = value_storage(value->dtype);
    product m = {.c = w->row_sums,
                 .c_row = width,
                 .a = {(const operand *)w->scores + k / TERMS, ATTN_BLOCK},
                 .b = value_at(w, b->first + k),
                 .b_row = value->row_stride,
                 .n_rows = row_form_rows(w->task->n_rows),
                 .n_steps = n_steps,
                 .resume = true};
    prefetch next =
        look_ahead(w, b, (b->end - b->first + k + KEY_GROUP - 1) / KEY_GROUP);
    matrix values = {NULL, 0};

    prefetch_rows(&next, 0, next.n_rows);
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        if (n == KEY_GROUP) {
            sum_weights(line, k, KEY_GROUP, sums + r);
        } else {
            sum_weights(line, k, n, sums + r);
        }
    }
    if (n == KEY_GROUP) {
        finish_weights(w, k, KEY_GROUP);
    } else {
        finish_weights(w, k, n);
    }
    if (b->coverage != ATTN_SEE_ALL || width != value_dim || n % TERMS != 0 ||
        !reads_in_place(value, value_dim, kind)) {
        values = fetch_values(w, b->first + k, n, 0, value_dim, width);
        m.b = (const char *)values.at;
        m.b_row = values.row * (ptrdiff_t)sizeof(operand);
        kind = AS_OPERANDS;
    }
    if (b->coverage == ATTN_SEE_ALL || all_finite(values, n_steps, value_dim)) {
        multiply_few(m, width / LANES, kind);
        return;
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        for (ptrdiff_t d = 0; d < value_dim; d++) {
            real *sum = m.c + r * width + d;
            *sum = sum_seen_values(w, r, k, n_steps, m.a.at + r * ATTN_BLOCK, 1, values,
                                   d, *sum);
        }
    }
}

#endif
