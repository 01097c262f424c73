/* What a linear task multiplies: rows of x, and blocks of W. */
#ifndef ATTN_KERNEL_LINEAR_OPERANDS_H
#define ATTN_KERNEL_LINEAR_OPERANDS_H

#include "kernel/lanes.h"
#include "kernel/linear/task.h"
#include "kernel/matrix.h"
#include "kernel/prefetch.h"

/* Loads elements first .. first + n - 1 of each row. */
static void
load_input(linear_work *w, ptrdiff_t first, ptrdiff_t n_elements)
{
    const attn_array *input = &w->l->input;
    ptrdiff_t n_rows = w->task->n_rows, at = first * input->column_stride;

    for (ptrdiff_t r = 0; r < n_rows && !w->row_form; r += LANES) {
        operand *tile = input_block(w, first) + r / WIDTH * WIDTH * STEPS + r % WIDTH;
        const char *rows[LANES] = {NULL};
        ptrdiff_t n = least(n_rows - r, LANES);
        for (ptrdiff_t i = 0; i < n; i++) {
            rows[i] = linear_row(w, input, r + i) + at;
        }
        load_lanes(input, rows, n, n_elements, w->rows, tile, NULL);
    }
    for (ptrdiff_t r = 0; r < row_form_rows(n_rows) && w->row_form; r++) {
        operand *to = w->input + r * STEPS;
        memset(to, 0, STEPS * sizeof *to);
        if (r < n_rows) {
            stage_row(to, linear_row(w, input, r) + at, input->column_stride,
                      n_elements, input->dtype);
        }
    }
}

/* The elements of x from `first` on that are wanted after the block before, if its rows are
 * adjacent: no CPU sees by itself what comes next there. */
static prefetch
input_prefetch(const linear_work *w, ptrdiff_t first)
{
    const attn_array *input = &w->l->input;
    ptrdiff_t size = attn_storage_of(input->dtype)->bytes;

    if (input->row_stride != size || first >= w->l->n_in) {
        return (prefetch){.n_rows = 0};
    }
    return (prefetch){.at = linear_row(w, input, 0) + first * input->column_stride,
                      .row = input->column_stride,
                      .bytes = w->task->n_rows * size,
                      .n_rows = least(w->l->n_in - first, ATTN_BLOCK)};
}

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
