/* What is done to a linear task's outputs last. */
#ifndef ATTN_KERNEL_LINEAR_FINISH_H
#define ATTN_KERNEL_LINEAR_FINISH_H

#include "kernel/lanes.h"
#include "kernel/linear/change.h"
#include "kernel/linear/task.h"

/* Where an array of the output's shape has a column of row r of the task. */
static char *
output_at(const linear_work *w, const attn_array *array, ptrdiff_t r, ptrdiff_t column)
{
    return linear_row(w, array, r) +
           (w->task->first_column + column) * array->column_stride;
}

static bool
is_changed(const attn_linear_problem *l)
{
    return l->times.data != NULL || l->residual.data != NULL;
}

/* Changes columns from `column` on of row r, n of them, by those of `times` and `residual`. */
static void
change_row(linear_work *w, ptrdiff_t r, ptrdiff_t column, ptrdiff_t n, real *row)
{
    const attn_array *times = &w->l->times, *residual = &w->l->residual;

    if (times->data != NULL) {
        change_by(row, output_at(w, times, r, column), times->column_stride, n,
                  times->dtype, true);
    }
    if (residual->data != NULL) {
        change_by(row, output_at(w, residual, r, column), residual->column_stride, n,
                  residual->dtype, false);
    }
}

/* Stores n rows from r on, which lie in lanes, after those changes. */
static void
store_changed_lanes(linear_work *w, ptrdiff_t r, ptrdiff_t n, const real *lanes)
{
    const attn_array *output = &w->l->output;
    ptrdiff_t n_columns = w->task->n_columns;
    real *to[LANES] = {NULL};

    for (ptrdiff_t i = 0; i < n; i++) {
        ONE_BY_ONE;
        to[i] = w->rows + i * SLAB_COLUMNS;
    }
    for (ptrdiff_t k = 0; k < n_columns; k += SLAB_COLUMNS) {
        ptrdiff_t n_now = least(n_columns - k, SLAB_COLUMNS);
        transpose_out(to, n, lanes + k * WIDTH, WIDTH, n_now);
        for (ptrdiff_t i = 0; i < n; i++) {
            change_row(w, r + i, k, n_now, to[i]);
            store_row(output_at(w, output, r + i, k), output->column_stride, to[i],
                      n_now, output->dtype);
        }
    }
}

#endif
