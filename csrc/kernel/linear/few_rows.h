/* Row form of a linear product, for few rows: columns of W are lanes. */
#ifndef ATTN_KERNEL_LINEAR_FEW_ROWS_H
#define ATTN_KERNEL_LINEAR_FEW_ROWS_H

#include "core/tuning.h"
#include "kernel/gemm/few_rows.h"
#include "kernel/linear/input.h"
#include "kernel/linear/weights.h"

/* Continues the chains of row form with rows first .. first + n - 1 of W, at most ROW_GROUP.
 * Row `first` is number k of its block. */
static void
add_weight_group(linear_work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t k)
{
    const attn_array *weight = &w->l->weight;
    ptrdiff_t n_columns = w->task->n_columns, width = row_width(w);
    storage kind = value_storage(weight->dtype);
    few_rows_product m = {.base = {.c = w->sums,
                                   .c_row = width,
                                   .a = {w->input + k / TERMS, STEPS},
                                   .b = weight_at(w, first),
                                   .b_row = weight->row_stride,
                                   .n_rows = row_form_rows(w->task->n_rows),
                                   .n_steps = (n + TERMS - 1) / TERMS},
                          .b_ahead = ROW_GROUP * weight->row_stride,
                          .b_far = true,
                          .resume = k > 0};

    if (width != n_columns || n % TERMS != 0 ||
        !reads_in_place(weight, w->l->n_out, kind)) {
        matrix staged = fetch_weights(w, first, n, width);
        m.base.b = (const char *)staged.at;
        m.base.b_row = staged.row * (ptrdiff_t)sizeof(operand);
        kind = AS_OPERANDS;
    }
    multiply_few_rows(m, width / LANES, kind);
}

/* Computes the chains of row form with rows first .. first + n - 1 of a packed panel. */
static void
add_weight_panel(linear_work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t column)
{
    bool in_place = w->l->weight.dtype == OPERAND_DTYPE;
    bool near = attn_get_tuning(ATTN_TUNE_READ_ONCE);
    ptrdiff_t n_rows = w->task->n_rows, ahead = near ? PANEL_NEAR_AHEAD : PANEL_AHEAD;
    few_rows_product m = {
        .base = {.c = w->sums + column,
                 .c_row = row_width(w),
                 .a = {w->input, STEPS},
                 .b = (const char *)fetch_panel(w, first, n, column).at,
                 .b_row = ATTN_PANEL_COLUMNS * sizeof(operand),
                 .n_steps = (n + TERMS - 1) / TERMS},
        .b_ahead = in_place ? ahead : 0,
        .b_far = !near || n_rows > ATTN_FEW_ROWS};

    for (ptrdiff_t r = 0; r < n_rows; r += ATTN_FEW_ROWS) {
        m.base.n_rows = row_form_rows(least(n_rows - r, ATTN_FEW_ROWS));
        multiply_few_rows_by_panel(m);
        m.base.c += ATTN_FEW_ROWS * m.base.c_row;
        m.base.a.at += ATTN_FEW_ROWS * STEPS;
        /* Later rows prefetch the next panel. */
        m.b_ahead = in_place && !near ? m.base.n_steps * m.base.b_row : 0;
    }
}

/* As add_linear_tiles, in row form. */
static void
add_linear_rows(linear_work *w, ptrdiff_t first, ptrdiff_t n)
{
    ptrdiff_t width = row_width(w), n_columns = w->task->n_columns;
    bool packed = w->l->packed;

    for (ptrdiff_t k = 0; packed && k < n_columns; k += ATTN_PANEL_COLUMNS) {
        add_weight_panel(w, first, n, k);
    }
    for (ptrdiff_t k = 0; !packed && (k < n || k == 0); k += ROW_GROUP) {
        add_weight_group(w, first + k, least(n - k, ROW_GROUP), k);
    }
    for (ptrdiff_t i = 0; i < w->task->n_rows * width; i += LANES) {
        v_real sum = v_load(w->sums + i);
        v_store(w->output + i, first > 0 ? v_add(v_load(w->output + i), sum) : sum);
    }
}

#endif
