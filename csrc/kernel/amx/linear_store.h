/* The last steps of a linear product on a matrix unit, for the sums of a few tiles at a time,
 * which are in the first cache: what linear/epilogue.h does for all of a task's. */
#ifndef ATTN_KERNEL_AMX_LINEAR_STORE_H
#define ATTN_KERNEL_AMX_LINEAR_STORE_H

#include "kernel/amx/linear_task.h"
#include "kernel/linear/epilogue.h"

/* Sums of tiles, and the reals from row to row. */
typedef struct {
    real *at;
    ptrdiff_t row;
} unit_sums;

/* Where the unit's sums from row r and a column on are. Those of the tiles before are in another
 * place. */
static unit_sums
sums_at(const matrix_work *m, ptrdiff_t r, ptrdiff_t column)
{
    const linear_work *w = &m->linear;

    if (m->whole) {
        ptrdiff_t turn = (r / (2 * UNIT_ROWS) + column / ATTN_PANEL_COLUMNS) % 2;
        return (unit_sums){m->sums + turn * UNIT_SUMS, ATTN_PANEL_COLUMNS};
    }
    return (unit_sums){w->output + r * row_width(w) + column, row_width(w)};
}

/* What the outputs of whole panels are made of: `bias` or NULL, of the task's columns. */
typedef struct {
    bool
        even; /* are rows of all arrays adjacent numbers that have vectors, evenly apart? */
    const real *bias;
} unit_outputs;

/* Are rows of an array adjacent numbers that have vectors, evenly apart? Of no array they are. */
static bool
has_even_vectors(const attn_linear_problem *l, const attn_array *array)
{
    return array->data == NULL ||
           ((array->dtype == ATTN_F32 || array->dtype == ATTN_BF16) &&
            array->column_stride == attn_storage_of(array->dtype)->bytes &&
            has_even_rows(l, array));
}

static unit_outputs
unit_outputs_of(const matrix_work *m)
{
    const attn_linear_problem *l = m->linear.l;
    const attn_array *bias = &l->bias;
    ptrdiff_t at = m->linear.task->first_column * bias->column_stride;
    unit_outputs to = {.even = has_even_vectors(l, &l->output) &&
                               has_even_vectors(l, &l->times) &&
                               has_even_vectors(l, &l->residual)};

    if (bias->data != NULL) {
        to.even = to.even && bias->column_stride == sizeof(real);
        to.bias = (const real *)(const void *)(bias->data + at);
    }
    return to;
}

/* Rows of outputs of a whole panel that are to be stored: while the unit multiplies the next
 * tiles, the units for vectors are idle. */
typedef struct {
    const attn_linear_problem *l;
    const real *bias; /* or NULL */
    unit_sums sums;
    char *output;
    const char *times, *residual; /* or NULL */
    ptrdiff_t n_rows;             /* that are left */
} unit_rest;

/* A vector of a row that outputs are changed by. */
static INLINE v_real
load_change(const attn_array *array, const char *row, int v)
{
    return array->dtype == ATTN_BF16
               ? v_load_bf16((const uint16_t *)(const void *)row + v * LANES)
               : v_load((const real *)(const void *)row + v * LANES);
}

static INLINE void
store_unit_row(unit_rest *rest)
{
    const attn_linear_problem *l = rest->l;
    const bool rounds = l->output.dtype == ATTN_BF16;
    const real *bias = rest->bias;
    real *row = rest->sums.at;

    if (l->activation != ATTN_IDENTITY) {
        activate(row, row, bias, LANES, UNIT_COLUMNS, l->activation);
        bias = NULL;
    }
    for (int v = 0; v < UNIT_COLUMNS; v++) {
        v_real y = v_load(row + v * LANES);
        y = bias == NULL ? y : v_add(y, v_load(bias + v * LANES));
        if (rest->times != NULL) {
            y = v_mul(y, load_change(&l->times, rest->times, v));
        }
        if (rest->residual != NULL) {
            y = v_add(y, load_change(&l->residual, rest->residual, v));
        }
        if (rounds) {
            v_store_bf16_fast((uint16_t *)(void *)rest->output + v * LANES, y);
        } else {
            v_store((real *)(void *)rest->output + v * LANES, y);
        }
    }
    rest->sums.at += rest->sums.row;
    rest->output += l->output.row_stride;
    rest->times += rest->times == NULL ? 0 : l->times.row_stride;
    rest->residual += rest->residual == NULL ? 0 : l->residual.row_stride;
    rest->n_rows--;
}

/* Stores up to n rows. */
static NOINLINE void
store_unit_rows(unit_rest *rest, ptrdiff_t n)
{
    for (; n > 0 && rest->n_rows > 0; n--) {
        store_unit_row(rest);
    }
}

/* Stores the outputs of one row of tiles or two, from row r and a column of the task on, or leaves
 * them in `rest`. */
static NOINLINE void
store_unit_sums(const matrix_work *m, const unit_outputs *to, unit_sums sums,
                ptrdiff_t r, ptrdiff_t column, unit_rest *rest)
{
    const linear_work *w = &m->linear;
    const attn_array *times = &w->l->times, *residual = &w->l->residual;
    attn_linear_task task = *w->task;
    linear_work part = {.l = w->l,
                        .task = &task,
                        .row_multiple = sums.row,
                        .output = sums.at,
                        .slab = (operand *)(void *)w->rows};

    task.n_columns = least(task.n_columns - column, ATTN_PANEL_COLUMNS);
    task.n_rows = least(task.n_rows - r, 2 * UNIT_ROWS);
    task.first_row += r;
    task.first_column += column;
    if (!to->even || task.n_columns < ATTN_PANEL_COLUMNS) {
        store_linear_rows(&part);
        return;
    }
    *rest = (unit_rest){
        .l = w->l,
        .bias = to->bias == NULL ? NULL : to->bias + column,
        .sums = sums,
        .output = output_at(&part, &w->l->output, 0, 0),
        .times = times->data == NULL ? NULL : output_at(&part, times, 0, 0),
        .residual = residual->data == NULL ? NULL : output_at(&part, residual, 0, 0),
        .n_rows = task.n_rows};
}

#endif
