/* The blocks of W that a linear task multiplies by. */
#ifndef ATTN_KERNEL_LINEAR_WEIGHTS_H
#define ATTN_KERNEL_LINEAR_WEIGHTS_H

#include "kernel/linear/task.h"
#include "kernel/matrix.h"
#include "kernel/prefetch.h"

/* Where W has row `first` of the task's columns. */
static const char *
weight_at(const linear_work *w, ptrdiff_t first)
{
    const attn_array *weight = &w->l->weight;
    return weight->data + first * weight->row_stride +
           w->task->first_column * weight->column_stride;
}

/* Rows first .. first + n - 1 of W, the task's columns. */
static matrix
fetch_weights(linear_work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t width)
{
    return fetch_rows(&w->l->weight, weight_at(w, first), n, w->l->n_out,
                      w->task->n_columns, width, w->slab);
}

/* The transpose of W. */
static attn_array
transposed_weight(const linear_work *w)
{
    attn_array columns = w->l->weight;

    columns.row_stride = w->l->weight.column_stride;
    columns.column_stride = w->l->weight.row_stride;
    return columns;
}

/* The same rows, (columns, rows). */
static matrix
fetch_columns(linear_work *w, ptrdiff_t first, ptrdiff_t n)
{
    attn_array columns = transposed_weight(w);
    return fetch_lines(&columns, weight_at(w, first), w->task->n_columns, w->l->n_in, n,
                       w->slab);
}

/* The weights that are wanted after the task's block of rows before `first`: the next
 * block, or the first one of the next columns, of this task or another. */
static prefetch
weights_prefetch(const linear_work *w, ptrdiff_t first)
{
    const attn_array *weight = &w->l->weight;
    ptrdiff_t n_columns = w->task->n_columns, column = w->task->first_column;

    if (first >= w->l->n_in) {
        first = 0;
        column += n_columns;
        column = column < w->l->n_out ? column : 0;
        n_columns = least(n_columns, w->l->n_out - column);
    }
    const char *at =
        weight->data + first * weight->row_stride + column * weight->column_stride;
    ptrdiff_t n_rows = least(w->l->n_in - first, ATTN_BLOCK);
    if (attn_is_transposed(w->l)) {
        attn_array columns = transposed_weight(w);
        return prefetch_of(&columns, at, n_rows, n_columns);
    }
    return prefetch_of(weight, at, n_columns, n_rows);
}

#endif
