/* The gradient of the bias: the gradients of scores, summed where scores share a number
 * of it. */
#ifndef ATTN_KERNEL_BACKWARD_BIAS_H
#define ATTN_KERNEL_BACKWARD_BIAS_H

#include "kernel/backward/task.h"
#include "kernel/operands/lanes.h"
#include "kernel/math/exp.h"

/* Adds n numbers to others. */
static void
add_row(real *to, const real *from, ptrdiff_t n)
{
    ptrdiff_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        v_store(to + k, quiet_nan_or(v_add(v_load(to + k), v_load(from + k))));
    }
    for (; k < n; k++) {
        ONE_BY_ONE;
        to[k] = one_nan_or(to[k] + from[k]);
    }
}

/* Rows r .. r + n - 1 of the tile, n <= LANES, each with numbers of its own for each key. */
static void
add_bias_rows(backward_work *w, const span *s, ptrdiff_t r, ptrdiff_t n)
{
    const attn_array *to = &w->g->grad_bias;
    real *rows[LANES];

    for (ptrdiff_t i = 0; i < LANES; i++) {
        ONE_BY_ONE;
        rows[i] = w->rows.staging + i * SLAB_COLUMNS;
    }
    transpose_out(rows, n, w->bias + r, LINE, s->n);
    for (ptrdiff_t i = 0; i < n; i++) {
        char *row = attn_address(to, &w->g->attention.batch, w->b,
                                 w->kv_head * w->g->attention.group, 0) +
                    row_offset(&w->rows, to, r + i);
        add_row((real *)(void *)row + s->first, rows[i], s->n);
    }
}

/* Sums over rows r .. end - 1, of one head, over the keys, or over both: where these
 * share a number. */
static void
add_bias_sums(backward_work *w, const span *s, ptrdiff_t r, ptrdiff_t end)
{
    const attn_array *to = &w->g->grad_bias;
    ptrdiff_t rows = to->row_stride == 0 ? end - r : 1;
    ptrdiff_t keys = to->column_stride == 0 ? s->n : 1;

    for (; r < end; r += rows) {
        char *row = attn_address(to, &w->g->attention.batch, w->b,
                                 w->kv_head * w->g->attention.group, 0) +
                    row_offset(&w->rows, to, r) + s->first * to->column_stride;
        for (ptrdiff_t k = 0; k < s->n; k += keys, row += to->column_stride) {
            real sum = 0;
            for (ptrdiff_t i = 0; i < rows * keys; i++) {
                ONE_BY_ONE;
                sum += w->bias[(k + i % keys) * LINE + r + i / keys];
            }
            real *at = (real *)(void *)row;
            *at = one_nan_or(*at + sum);
        }
    }
}

static NOINLINE void
add_to_bias(backward_work *w, const span *s)
{
    const attn_array *to = &w->g->grad_bias;
    bool sums = to->row_stride == 0 || to->column_stride == 0;

    for (ptrdiff_t r = 0, end; r < w->task.n_rows; r = end) {
        end = sums ? end_of_head(&w->task, r) : least(r + LANES, w->task.n_rows);
        if (sums) {
            add_bias_sums(w, s, r, end);
        } else {
            add_bias_rows(w, s, r, end - r);
        }
    }
}

#endif
