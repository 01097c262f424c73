/* The rows of x that a linear task multiplies. */
#ifndef ATTN_KERNEL_LINEAR_INPUT_H
#define ATTN_KERNEL_LINEAR_INPUT_H

#include "kernel/linear/task.h"
#include "kernel/operands/lanes.h"
#include "kernel/operands/prefetch.h"

/* Where the block of the task's rows from element `first` on is kept. */
static operand *
input_block(const linear_work *w, ptrdiff_t first)
{
    ptrdiff_t n_tiles = tiles_of(w->task->n_rows);
    return w->input +
           (w->keeps_input ? first / ATTN_BLOCK * STEPS * n_tiles * WIDTH : 0);
}

/* Rows that row form computes for n_rows, ATTN_FEW_ROWS at a time. */
static ptrdiff_t
linear_row_form_rows(ptrdiff_t n_rows)
{
    ptrdiff_t whole = (n_rows - 1) / ATTN_FEW_ROWS * ATTN_FEW_ROWS;
    return whole + row_form_rows(n_rows - whole);
}

/* Loads elements first .. first + n - 1 of each row as (n_rows, n_steps). Rows beyond the task's,
 * and elements behind the last, are 0. */
static void
stage_input(linear_work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t n_rows)
{
    const attn_array *input = &w->l->input;
    operand *to = input_block(w, first);

    for (ptrdiff_t r = 0; r < n_rows; r++, to += w->n_steps) {
        bool is_there = r < w->task->n_rows;
        if (!is_there || n < w->n_steps * TERMS) {
            memset(to, 0, (size_t)w->n_steps * sizeof *to);
        }
        if (is_there) {
            const char *from = linear_row(w, input, r) + first * input->column_stride;
            stage_row(to, from, input->column_stride, n, input->dtype);
        }
    }
}

/* Loads elements first .. first + n - 1 of each row for tile form or row form. */
static void
load_input(linear_work *w, ptrdiff_t first, ptrdiff_t n_elements)
{
    const attn_array *input = &w->l->input;
    ptrdiff_t n_rows = w->task->n_rows, at = first * input->column_stride;

    for (ptrdiff_t r = 0; r < n_rows && w->form == TILE_FORM; r += LANES) {
        operand *tile = input_block(w, first) + r / WIDTH * WIDTH * STEPS + r % WIDTH;
        const char *rows[LANES] = {NULL};
        ptrdiff_t n = least(n_rows - r, LANES);
        for (ptrdiff_t i = 0; i < n; i++) {
            rows[i] = linear_row(w, input, r + i) + at;
        }
        load_lanes(input, rows, n, n_elements, w->rows, tile, NULL);
    }
    if (w->form == ROW_FORM) {
        stage_input(w, first, n_elements, linear_row_form_rows(n_rows));
    }
}

/* Elements of x from `first` on, if its rows are evenly apart. Only for the form for many rows:
 * without it CPUs were as fast. */
static prefetch
input_rows_prefetch(const linear_work *w, ptrdiff_t first)
{
    const attn_array *input = &w->l->input;
    ptrdiff_t n_rows =
        has_even_rows(w->l, input) && w->l->many_rows ? w->task->n_rows : 0;

    return prefetch_of(input, linear_row(w, input, 0) + first * input->column_stride,
                       least(w->l->n_in - first, ATTN_BLOCK), n_rows);
}

/* The elements of x from `first` on that come after the block before: hardware prefetchers do
 * not find them. */
static prefetch
input_prefetch(const linear_work *w, ptrdiff_t first)
{
    const attn_array *input = &w->l->input;
    ptrdiff_t size = attn_storage_of(input->dtype)->bytes;

    if (first >= w->l->n_in) {
        return (prefetch){.n_rows = 0};
    }
    if (input->row_stride != size) {
        return input_rows_prefetch(w, first);
    }
    return (prefetch){.at = linear_row(w, input, 0) + first * input->column_stride,
                      .row = input->column_stride,
                      .bytes = w->task->n_rows * size,
                      .n_rows = least(w->l->n_in - first, ATTN_BLOCK)};
}

#endif
