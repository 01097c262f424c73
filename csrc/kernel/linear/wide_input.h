/* The rows of x of a wide task. */
#ifndef ATTN_KERNEL_LINEAR_WIDE_INPUT_H
#define ATTN_KERNEL_LINEAR_WIDE_INPUT_H

#include "kernel/linear/input.h"
#include "kernel/product_wide.h"

#if WIDE_TASKS

/* Are rows of x read where they lie? */
static bool
has_rows_in_place(const linear_work *w)
{
    const attn_linear_problem *l = w->l;

    return TERMS == 1 && is_plain(&l->input, l->n_in) && has_even_rows(l, &l->input) &&
           w->task->n_rows % WIDE_ROWS == 0;
}

/* Where elements from `first` on of groups of WIDE_ROWS rows are: operands from row to row, from step
 * to step, and from group to group. */
typedef struct {
    const operand *at;
    ptrdiff_t row, step, group;
} wide_input;

#if TERMS == 1

/* Do rows of x lie beside each other, as those of a transposed array? */
static bool
has_adjacent_rows(const linear_work *w)
{
    const attn_array *input = &w->l->input;

    return w->l->batch.n == 1 &&
           input->row_stride == attn_storage_of(input->dtype)->bytes &&
           input->column_stride != input->row_stride;
}

/* One element of all rows, which lie beside each other: to k of (groups, STEPS, WIDE_ROWS). */
static void
scatter_elements(operand *to, const operand *from, ptrdiff_t n_rows)
{
    for (; n_rows >= WIDE_ROWS; n_rows -= WIDE_ROWS, from += WIDE_ROWS) {
        memcpy(to, from, WIDE_ROWS * sizeof *to);
        to += STEPS * WIDE_ROWS;
    }
    if (n_rows > 0) {
        memset(to, 0, WIDE_ROWS * sizeof *to);
        memcpy(to, from, (size_t)n_rows * sizeof *to);
    }
}

/* Elements first .. first + n - 1 of each row, as (groups of rows, STEPS, WIDE_ROWS). */
static void
load_adjacent_rows(linear_work *w, ptrdiff_t first, ptrdiff_t n)
{
    const attn_array *input = &w->l->input;
    const char *from = linear_row(w, input, 0) + first * input->column_stride;
    operand *to = input_block(w, first);

    for (ptrdiff_t k = 0; k < n; k++, from += input->column_stride) {
        stage_row(w->rows, from, input->row_stride, w->task->n_rows, input->dtype);
        scatter_elements(to + k * WIDE_ROWS, w->rows, w->task->n_rows);
    }
}

#endif

/* Elements first .. first + n - 1 of each row: where they lie, or brought in, if they are not `loaded`
 * before; rows that the last group lacks are 0. */
static wide_input
fetch_wide_input(linear_work *w, ptrdiff_t first, ptrdiff_t n, bool loaded)
{
    operand *staged = input_block(w, first);

    if (has_rows_in_place(w)) {
        const char *at = linear_row(w, &w->l->input, 0);
        ptrdiff_t row = w->l->input.row_stride / (ptrdiff_t)sizeof(operand);
        return (wide_input){(const operand *)(const void *)at + first, row, 1,
                            WIDE_ROWS * row};
    }
#if TERMS == 1
    if (has_adjacent_rows(w)) {
        if (!loaded) {
            load_adjacent_rows(w, first, n);
        }
        return (wide_input){staged, 1, WIDE_ROWS, WIDE_ROWS * STEPS};
    }
#endif
    if (!loaded) {
        stage_input(w, first, n, round_up(w->task->n_rows, WIDE_ROWS));
    }
    return (wide_input){staged, STEPS, 1, WIDE_ROWS * STEPS};
}

#endif
#endif
