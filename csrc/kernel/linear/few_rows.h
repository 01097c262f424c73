/* Row form of a linear product, for few rows: columns of W are lanes. */
#ifndef ATTN_KERNEL_LINEAR_FEW_ROWS_H
#define ATTN_KERNEL_LINEAR_FEW_ROWS_H

#include "core/tuning.h"
#include "kernel/gemm/few_rows.h"
#include "kernel/gemm/lines.h"
#include "kernel/gemm/two_panels.h"
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
    bool alone = kind == AS_OPERANDS && w->task->n_rows <= STREAM_ROWS &&
                 attn_get_tuning(ATTN_TUNE_READ_ALONE);
    few_rows_product m = {.base = {.c = w->sums,
                                   .c_row = width,
                                   .a = {w->input + k / TERMS, STEPS},
                                   .b = weight_at(w, first),
                                   .b_row = weight->row_stride,
                                   .n_rows = w->task->n_rows,
                                   .n_steps = (n + TERMS - 1) / TERMS},
                          .b_ahead = alone ? 0 : ROW_GROUP * weight->row_stride,
                          .b_goal = TO_SECOND,
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

/* How a packed panel's rows are read: as halves where they lie, or as operands, from the slab
 * where the panel has others. */
static storage
panel_storage(attn_dtype dtype)
{
#if TERMS == 1 && REAL_BITS == 32
    return dtype == ATTN_F16 ? AS_F16 : AS_OPERANDS;
#else
    (void)dtype;
    return AS_OPERANDS;
#endif
}

/* Does one row read two packed panels at a time, from that at a column on? Those of bfloat16 are
 * read where they lie only so. */
static bool
reads_two_panels(const linear_work *w, ptrdiff_t column)
{
    attn_dtype dtype = w->l->weight.dtype;
    bool alone = dtype == OPERAND_DTYPE && attn_get_tuning(ATTN_TUNE_READ_ALONE);

    return TAKES_TWO_PANELS && w->task->n_rows == 1 &&
           column + ATTN_PANEL_COLUMNS < w->task->n_columns &&
           (alone || dtype == ATTN_BF16);
}

/* Computes the chains of row form with rows first .. first + n - 1 of the packed panel at a column,
 * or of two panels where one row reads them; returns how many columns these have. */
static ptrdiff_t
add_weight_panels(linear_work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t column)
{
    if (reads_two_panels(w, column)) {
        const product p = {.c = w->sums + column,
                           .a = {w->input, STEPS},
                           .b = panel_at(w, first, column),
                           .n_steps = n};
        multiply_two_panels(&p, w->l->weight.dtype == ATTN_BF16);
        return 2 * ATTN_PANEL_COLUMNS;
    }
    storage kind = panel_storage(w->l->weight.dtype);
    bool in_place = kind != AS_OPERANDS || w->l->weight.dtype == OPERAND_DTYPE;
    bool near = attn_get_tuning(ATTN_TUNE_READ_ONCE);
    ptrdiff_t n_rows = w->task->n_rows, ahead = near ? PANEL_NEAR_AHEAD : PANEL_AHEAD;
    bool alone =
        kind == AS_OPERANDS && n_rows == 1 && attn_get_tuning(ATTN_TUNE_READ_ALONE);
    few_rows_product m = {
        .base = {.c = w->sums + column,
                 .c_row = row_width(w),
                 .a = {w->input, STEPS},
                 .b = in_place ? panel_at(w, first, column)
                               : (const char *)fetch_panel(w, first, n, column).at,
                 .b_row = ATTN_PANEL_COLUMNS * storage_bytes(kind),
                 .n_steps = (n + TERMS - 1) / TERMS},
        .b_ahead = in_place && !alone ? ahead : 0,
        .b_goal = near && n_rows <= ATTN_FEW_ROWS ? TO_FIRST : TO_SECOND};

    for (ptrdiff_t r = 0; r < n_rows; r += ATTN_FEW_ROWS) {
        m.base.n_rows = row_form_rows(least(n_rows - r, ATTN_FEW_ROWS));
        multiply_few_rows_by_panel(m, kind);
        m.base.c += ATTN_FEW_ROWS * m.base.c_row;
        m.base.a.at += ATTN_FEW_ROWS * STEPS;
        /* Later rows prefetch the next panel. */
        m.b_ahead = in_place && !near ? m.base.n_steps * m.base.b_row : 0;
    }
    return ATTN_PANEL_COLUMNS;
}

/* Copies elements first .. first + n - 1, of one block, of at most LANES columns of W into the
 * slab, and zeros in the place of those that a whole vector lacks. */
static const char *
stage_lines(linear_work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t column)
{
    const attn_array *weight = &w->l->weight;
    const char *from = weight_at(w, first) + column * weight->column_stride;
    ptrdiff_t n_lines = least(w->task->n_columns - column, LANES);
    operand *to = w->slab;

    for (ptrdiff_t i = 0; i < n_lines;
         i++, to += STEPS, from += weight->column_stride) {
        stage_row(to, from, weight->row_stride, n, weight->dtype);
    }
    memset(to, 0, (size_t)((LANES - n_lines) * STEPS) * sizeof *to);
    return (const char *)w->slab;
}

/* Adds the products of elements first .. first + n - 1 with at most LANES columns of W that are
 * no lines of operands, or fewer than a vector. */
static void
add_staged_lines(linear_work *w, lines_product m, ptrdiff_t first, ptrdiff_t n,
                 ptrdiff_t column)
{
    m.base.b_row = STEPS * sizeof(operand);
    for (ptrdiff_t k = 0; k < n || k == 0; k += ATTN_BLOCK) {
        ptrdiff_t n_now = least(n - k, ATTN_BLOCK);
        m.base.b = stage_lines(w, first + k, n_now, column);
        m.base.n_steps = (n_now + TERMS - 1) / TERMS;
        m.add = first + k > 0;
        multiply_weight_lines(&m, 1, AS_OPERANDS);
        m.base.a.at += STEPS;
    }
}

/* Multiplies n_vec vectors of lines, which are read where they lie; `next` is behind them. Short
 * vectors of a single row leave units idle, unless two take turns. */
static void
multiply_all_lines(lines_product m, ptrdiff_t n_vec, const char *next, storage kind)
{
    const int most = LANES > 1 && LANES < 8 && m.base.n_rows == 1 ? 2 : 1;
    const ptrdiff_t vector = LANES * m.base.b_row;

    for (ptrdiff_t taken; n_vec > 0; n_vec -= taken) {
        taken = n_vec >= most ? most : 1;
        m.after = n_vec > taken ? m.base.b + taken * vector : next;
        multiply_weight_lines(&m, (int)taken, kind);
        m.base.b += taken * vector;
        m.base.c += taken * LANES;
    }
}

/* How lines are read. Not inlined: GCC 12 would warn of a path on which the dtype is none. */
static NOINLINE storage
line_storage(const linear_work *w)
{
    return key_storage(w->l->weight.dtype);
}

/* Adds the products of elements first .. first + n - 1 with columns of W that are lines. Lines are
 * read where they lie, as far as they are whole vectors. */
static void
add_weight_lines(linear_work *w, ptrdiff_t first, ptrdiff_t n)
{
    const attn_array columns = transposed_weight(w);
    const ptrdiff_t n_columns = w->task->n_columns;
    storage kind = line_storage(w);
    bool in_place = reads_in_place(&columns, w->l->n_in, kind);
    ptrdiff_t n_vec = in_place ? n_columns / LANES : 0;
    lines_product m = {.base = {.c = w->output,
                                .c_row = row_width(w),
                                .a = {w->input, w->n_steps},
                                .b = weight_at(w, first),
                                .b_row = columns.row_stride,
                                .n_rows = row_form_rows(w->task->n_rows),
                                .n_steps = (n + TERMS - 1) / TERMS},
                       .chain = STEPS,
                       .add = first > 0};

    multiply_all_lines(m, n_vec, weight_at(w, first + n), kind);
    for (ptrdiff_t k = n_vec * LANES; k < n_columns; k += LANES) {
        m.base.c = w->output + k;
        add_staged_lines(w, m, first, n, k);
    }
}

/* As add_linear_tiles, in row form. */
static void
add_linear_rows(linear_work *w, ptrdiff_t first, ptrdiff_t n)
{
    if (attn_is_transposed(w->l)) {
        add_weight_lines(w, first, n);
        return;
    }
    ptrdiff_t width = row_width(w), n_columns = w->task->n_columns;
    bool packed = w->l->packed;

    for (ptrdiff_t k = 0; packed && k < n_columns;) {
        k += add_weight_panels(w, first, n, k);
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
