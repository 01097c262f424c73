/* Tile form of a linear product: rows of x are lanes, and elements of W are read where they
 * lie. */
#ifndef ATTN_KERNEL_LINEAR_TILE_H
#define ATTN_KERNEL_LINEAR_TILE_H

#include "kernel/gemm/tiles.h"
#include "kernel/linear/epilogue.h"
#include "kernel/linear/input.h"
#include "kernel/linear/weights.h"

/* The bias of a column of the task. */
static real
column_bias(const linear_work *w, ptrdiff_t column)
{
    const attn_array *bias = &w->l->bias;
    ptrdiff_t at = (w->task->first_column + column) * bias->column_stride;
    return bias->data == NULL ? 0 : load_element(bias->data + at, REAL_DTYPE);
}

/* Stores n rows from r on, which lie in lanes, changed by `times` and `residual`. */
static void
store_combined_lanes(linear_work *w, ptrdiff_t r, ptrdiff_t n, const real *lanes)
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
            apply_times_and_residual(w, r + i, k, n_now, to[i]);
            store_row(output_at(w, output, r + i, k), output->column_stride, to[i],
                      n_now, output->dtype);
        }
    }
}

/* Adds the products of elements first .. first + n - 1 of each row, in one chain, with n_columns
 * columns of W from `column` on, which are `weights`. */
static void
add_linear_columns(linear_work *w, ptrdiff_t first, ptrdiff_t n, matrix weights,
                   ptrdiff_t column, ptrdiff_t n_columns, prefetch next)
{
    prefetch input_next =
        column > 0 ? (prefetch){.n_rows = 0} : input_prefetch(w, first + ATTN_BLOCK);

    for (ptrdiff_t r = 0; r < w->task->n_rows; r += WIDTH) {
        ptrdiff_t n_lanes = least(w->task->n_rows - r, WIDTH);
        const operand *input = input_block(w, first) + r * STEPS;
        int n_vec = (int)((n_lanes + LANES - 1) / LANES);
        tile_product m = {
            .base = {.c = w->output + r * w->task->n_columns + column * WIDTH,
                     .c_row = WIDTH,
                     .a = weights,
                     .b = (const char *)input,
                     .b_row = WIDTH * sizeof(operand),
                     .n_rows = n_columns,
                     .n_steps = (n + TERMS - 1) / TERMS},
            .add = first > 0,
            .next = {next, input_next}};
        if (attn_is_transposed(w->l)) {
            multiply(m, n_vec);
        } else {
            multiply_transposed(m, n_vec);
        }
        next.n_rows = input_next.n_rows = 0;
    }
}

static void
add_linear_tiles(linear_work *w, ptrdiff_t first, ptrdiff_t n)
{
    ptrdiff_t n_columns = w->task->n_columns;

    if (!w->l->packed) {
        matrix weights = attn_is_transposed(w->l)
                             ? fetch_columns(w, first, n)
                             : fetch_weights(w, first, n, n_columns);
        prefetch next = weights_prefetch(w, first + ATTN_BLOCK);
        add_linear_columns(w, first, n, weights, 0, n_columns, next);
        return;
    }
    for (ptrdiff_t k = 0; k < n_columns; k += ATTN_PANEL_COLUMNS) {
        add_linear_columns(w, first, n, fetch_panel(w, first, n, k), k,
                           least(n_columns - k, ATTN_PANEL_COLUMNS),
                           panel_prefetch(w, first, k));
    }
}

static void
store_linear_tiles(linear_work *w)
{
    const attn_array *output = &w->l->output;
    ptrdiff_t n_rows = w->task->n_rows, n_columns = w->task->n_columns;

    for (ptrdiff_t r = 0; r < n_rows; r += LANES) {
        real *lanes = w->output + r / WIDTH * WIDTH * n_columns + r % WIDTH;
        char *rows[LANES] = {NULL};
        ptrdiff_t n = least(n_rows - r, LANES);
        for (ptrdiff_t i = 0; i < n; i++) {
            rows[i] = output_at(w, output, r + i, 0);
        }
        for (ptrdiff_t k = 0; k < n_columns && w->l->bias.data != NULL; k++) {
            v_real bias = v_set1(column_bias(w, k));
            v_store(lanes + k * WIDTH, v_add(v_load(lanes + k * WIDTH), bias));
        }
        if (w->l->activation != ATTN_IDENTITY) {
            activate(lanes, lanes, NULL, WIDTH, n_columns, w->l->activation);
        }
        if (has_times_or_residual(w->l)) {
            store_combined_lanes(w, r, n, lanes);
        } else {
            store_lanes(output, rows, n, lanes, n_columns, w->rows);
        }
    }
}

#endif
