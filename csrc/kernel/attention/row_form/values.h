/* Row form by vectors: weighted sums of values, O[row][d]. */
#ifndef ATTN_KERNEL_ATTENTION_ROW_FORM_VALUES_H
#define ATTN_KERNEL_ATTENTION_ROW_FORM_VALUES_H

#include "kernel/attention/operands.h"
#include "kernel/attention/row_form/weights.h"
#include "kernel/gemm/few_rows.h"

/* Are values of the task read some columns at a time, since not all sums fit in registers? */
static bool
takes_columns_apart(const few_rows_product *m, ptrdiff_t width)
{
    return width / LANES >
           least(PANEL_ROWS * TILE_VECTORS / row_form_rows(m->base.n_rows),
                 MOST_VECTORS);
}

/* Adds the weighted values of n keys from key k of the block on to its sums. */
static void
add_weighted_values(work *w, const block *b, ptrdiff_t k, ptrdiff_t n)
{
    key_run run = values_of(&w->rows, b->first + k, n);
    ptrdiff_t value_dim = run.dim, width = w->value_width;
    ptrdiff_t n_steps = (n + TERMS - 1) / TERMS;
    storage kind = value_storage(run.array->dtype);
    const char *next = next_after_values(w, b, b->first + k, &run);
    few_rows_product m = {
        .base = {.c = w->row_sums,
                 .c_row = width,
                 .a = {(const operand *)w->scores + k / TERMS, ATTN_BLOCK},
                 .b = run.at,
                 .b_row = run.array->row_stride,
                 .n_rows = w->rows.task->n_rows,
                 .n_steps = n_steps},
        .resume = true,
        .b_ahead = next == NULL ? 0 : bytes_between(run.at, next),
        .b_goal = goal_of(w)};
    m.b_ahead_again = m.b_ahead; /* spread over all products, or they wait for memory */
    matrix values = {NULL, 0};

    if (b->coverage != ATTN_SEE_ALL || width != value_dim || n % TERMS != 0 ||
        !reads_in_place(run.array, value_dim, kind)) {
        values = fetch_values(w, &run, 0, value_dim, width);
        m.base.b = (const char *)values.at;
        m.base.b_row = values.row * (ptrdiff_t)sizeof(operand);
        m.b_ahead = m.b_ahead_again = 0;
        kind = AS_OPERANDS;
    } else if (takes_columns_apart(&m, width) &&
               reads_bursts(w, run.array, value_dim)) {
        touch_lines(run.at, n * run.array->row_stride / CACHE_LINE);
    }
    if (b->coverage == ATTN_SEE_ALL || all_finite(values, value_dim, 0, n_steps)) {
        multiply_few_rows(m, width / LANES, kind);
        return;
    }
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        for (ptrdiff_t d = 0; d < value_dim; d++) {
            real *sum = m.base.c + r * width + d;
            *sum = sum_seen_values(w, r, k, n_steps, m.base.a.at + r * ATTN_BLOCK, 1,
                                   values, d, *sum);
        }
    }
}

/* Sums of the block's weights, and of its weighted values, group by group: the first are chains
 * of their own that run beside the products. */
static void
sum_rows(work *w, const block *b, real *sums)
{
    ptrdiff_t n_keys = b->end - b->first;

    memset(w->row_sums, 0,
           (size_t)(row_form_rows(w->rows.task->n_rows) * w->value_width) *
               sizeof(real));
    for (ptrdiff_t k = 0; k < n_keys; k += KEY_GROUP) {
        begin_group(w, b, k, sums);
        add_weighted_values(w, b, k, least(n_keys - k, KEY_GROUP));
    }
}

#endif
