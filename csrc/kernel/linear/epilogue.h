/* The last steps of a linear task: adds the bias, applies the activation, multiplies by
 * `times`, adds the residual, and stores the outputs. */
#ifndef ATTN_KERNEL_LINEAR_EPILOGUE_H
#define ATTN_KERNEL_LINEAR_EPILOGUE_H

#include "kernel/linear/task.h"
#include "kernel/math/activations.h"
#include "kernel/operands/convert.h"

/* row = row * by, or row + by, of a vector. */
static INLINE void
combine_vector(real *row, const real *by, bool multiplies)
{
    v_real a = v_load(row), b = v_load(by);
    v_store(row, multiplies ? v_mul(a, b) : v_add(a, b));
}

/* The same of n <= SLAB_COLUMNS numbers at `from`, of any dtype. The row has room for whole
 * vectors. */
static NOINLINE void
combine_row(real *row, const char *from, ptrdiff_t stride, ptrdiff_t n,
            attn_dtype dtype, bool multiplies)
{
    const real *reals = (const real *)(const void *)from;
    bool plain = dtype == REAL_DTYPE && stride == sizeof(real);
    ptrdiff_t whole = plain ? n / LANES * LANES : 0, left = n - whole;
    real rest[SLAB_COLUMNS];

    for (ptrdiff_t k = 0; k < whole; k += LANES) {
        combine_vector(row + k, reals + k, multiplies);
    }
    if (left % LANES > 0) {
        v_store(rest + left / LANES * LANES, v_set1(0));
    }
    load_row(rest, from + whole * stride, stride, left, dtype);
    for (ptrdiff_t k = 0; k < left; k += LANES) {
        combine_vector(row + whole + k, rest + k, multiplies);
    }
}

/* The address of a column in row r of the task, in an array of the output's shape. */
static char *
output_at(const linear_work *w, const attn_array *array, ptrdiff_t r, ptrdiff_t column)
{
    return linear_row(w, array, r) +
           (w->task->first_column + column) * array->column_stride;
}

static bool
has_times_or_residual(const attn_linear_problem *l)
{
    return l->times.data != NULL || l->residual.data != NULL;
}

/* Applies `times` and `residual` to n columns from `column` on of row r. */
static void
apply_times_and_residual(linear_work *w, ptrdiff_t r, ptrdiff_t column, ptrdiff_t n,
                         real *row)
{
    const attn_array *times = &w->l->times, *residual = &w->l->residual;

    if (times->data != NULL) {
        combine_row(row, output_at(w, times, r, column), times->column_stride, n,
                    times->dtype, true);
    }
    if (residual->data != NULL) {
        combine_row(row, output_at(w, residual, r, column), residual->column_stride, n,
                    residual->dtype, false);
    }
}

/* The bias of a task's columns: whole vectors in place, and the last ones, filled up with 0. */
typedef struct {
    const real *whole;
    real rest[LANES];
} linear_bias;

/* The task's bias, copied to `staged` if its columns are not adjacent; NULL if there is none. */
static const linear_bias *
fetch_bias(const linear_work *w, linear_bias *b, real *staged)
{
    const attn_array *bias = &w->l->bias;
    ptrdiff_t n = w->task->n_columns, n_rest = n % LANES;

    if (bias->data == NULL) {
        return NULL;
    }
    const char *from = bias->data + w->task->first_column * bias->column_stride;
    b->whole = (const real *)(const void *)from;
    if (bias->column_stride != sizeof(real)) {
        load_row(staged, from, bias->column_stride, n, REAL_DTYPE);
        b->whole = staged;
    }
    v_store(b->rest, v_set1(0));
    memcpy(b->rest, b->whole + n - n_rest, (size_t)n_rest * sizeof(real));
    return b;
}

/* Outputs of a task: some rows' columns. */
typedef struct {
    ptrdiff_t row, n_rows, column, n_columns;
} linear_part;

/* to = the activation of a part's row plus the bias. The row has room for whole vectors; `to`
 * has none, unless it is the row. */
static void
activate_row(const linear_work *w, const linear_part *p, real *to, real *row,
             const linear_bias *bias)
{
    ptrdiff_t whole = p->n_columns / LANES * LANES, left = p->n_columns - whole;
    attn_activation activation = w->l->activation;

    if (to == row && bias == NULL && activation == ATTN_IDENTITY) {
        return;
    }
    activate(to, row, bias == NULL ? NULL : bias->whole + p->column, LANES,
             whole / LANES, activation);
    if (left > 0) {
        real *rest = row + whole;
        activate(rest, rest, bias == NULL ? NULL : bias->rest, LANES, 1, activation);
        memmove(to + whole, rest, (size_t)left * sizeof(real));
    }
}

/* Stores outputs that lie in rows. Columns that are not all of the task's are whole vectors, or
 * the last ones. */
static void
store_linear_part(linear_work *w, const linear_part *p, const linear_bias *bias)
{
    const attn_array *output = &w->l->output;
    bool in_place = is_plain(output, p->n_columns) && !has_times_or_residual(w->l);

    for (ptrdiff_t r = p->row; r < p->row + p->n_rows; r++) {
        real *row = w->output + r * row_width(w) + p->column;
        char *to = output_at(w, output, r, p->column);
        activate_row(w, p, in_place ? (real *)(void *)to : row, row, bias);
        if (in_place) {
            continue;
        }
        for (ptrdiff_t k = 0; k < p->n_columns && has_times_or_residual(w->l);
             k += SLAB_COLUMNS) {
            ptrdiff_t n = least(p->n_columns - k, SLAB_COLUMNS);
            apply_times_and_residual(w, r, p->column + k, n, row + k);
        }
        store_row(to, output->column_stride, row, p->n_columns, output->dtype);
    }
}

/* Stores all outputs of the task, which lie in rows. */
static void
store_linear_rows(linear_work *w)
{
    linear_part all = {0, w->task->n_rows, 0, w->task->n_columns};
    linear_bias room;

    store_linear_part(w, &all, fetch_bias(w, &room, (real *)(void *)w->slab));
}

#if REAL_BITS == 32 && TERMS == 1 /* for products of integers, which are in float32 */

static const real *
load_linear_row(const attn_linear_problem *l, ptrdiff_t row, real *to)
{
    const attn_linear_task task = {.first_row = row, .n_rows = 1};
    const linear_work w = {.l = l, .task = &task};
    const char *from = linear_row(&w, &l->input, 0);

    if (is_plain(&l->input, l->n_in)) {
        return (const real *)(const void *)from;
    }
    load_row(to, from, l->input.column_stride, l->n_in, l->input.dtype);
    return to;
}

static void
store_linear_sums(const attn_linear_problem *l, const attn_linear_task *task,
                  real *sums, ptrdiff_t row, real *staged)
{
    linear_work w = {.l = l,
                     .task = task,
                     .row_multiple = row,
                     .output = sums,
                     .slab = (operand *)(void *)staged};

    store_linear_rows(&w);
}

#endif

#endif
