/* The panels of W that a task of many rows multiplies by, of a block's rows and
 * ATTN_PANEL_COLUMNS columns. Where W was not packed before the call the task packs it: many
 * rows repay copying each panel once into the order in which it is read. */
#ifndef ATTN_KERNEL_LINEAR_PACK_H
#define ATTN_KERNEL_LINEAR_PACK_H

#include "kernel/linear/weights.h"
#include "kernel/operands/lanes.h"

/* Does the task pack W? It needs more rows than other forms have. Pairs are not packed. */
static bool
packs_weight(const linear_work *w)
{
    attn_array columns = transposed_weight(w);

    return TERMS == 1 && w->task->n_rows > ATTN_TASK_ROWS &&
           (!attn_is_transposed(w->l) ||
            reads_in_place(&columns, w->l->n_in, AS_OPERANDS));
}

#if TERMS == 1

/* Packs n columns of W, which are rows in memory: transposes a vector of them at a time. */
static void
pack_columns(operand *panel, const attn_array *weight, const char *from,
             ptrdiff_t n_rows, ptrdiff_t n)
{
    for (ptrdiff_t j = 0; j < ATTN_PANEL_COLUMNS; j += LANES) {
        const real *rows[LANES] = {NULL};
        ptrdiff_t n_now = most(least(n - j, LANES), 0);
        for (ptrdiff_t i = 0; i < n_now; i++) {
            ONE_BY_ONE;
            rows[i] =
                (const real *)(const void *)(from + (j + i) * weight->column_stride);
        }
        transpose_in(panel + j, ATTN_PANEL_COLUMNS, rows, n_now, n_rows, NULL);
    }
}

/* Packs whole rows of a panel, which are reals. */
static void
copy_rows(operand *to, const char *from, ptrdiff_t row_stride, ptrdiff_t n)
{
    for (ptrdiff_t k = 0; k < n; k++, from += row_stride, to += ATTN_PANEL_COLUMNS) {
        UNROLLED for (int v = 0; v < ATTN_PANEL_COLUMNS; v += LANES)
        {
            v_store(to + v, v_load((const real *)(const void *)from + v));
        }
    }
}

/* Packs rows of any dtype and stride; columns from n on are 0. */
static void
stage_rows_of_panel(operand *to, const attn_array *weight, const char *from,
                    ptrdiff_t n_rows, ptrdiff_t n)
{
    memset(to, 0, (size_t)(n_rows * ATTN_PANEL_COLUMNS) * sizeof *to);
    for (ptrdiff_t k = 0; k < n_rows; k++, from += weight->row_stride) {
        stage_row(to + k * ATTN_PANEL_COLUMNS, from, weight->column_stride, n,
                  weight->dtype);
    }
}

/* Packs rows first .. first + n - 1 of W, from a column of the task on, into the slab. */
static const operand *
pack_panel(linear_work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t column)
{
    const attn_array *weight = &w->l->weight;
    const char *from = weight_at(w, first) + column * weight->column_stride;
    ptrdiff_t n_columns = least(w->task->n_columns - column, ATTN_PANEL_COLUMNS);

    if (attn_is_transposed(w->l)) {
        pack_columns(w->slab, weight, from, n, n_columns);
    } else if (n_columns == ATTN_PANEL_COLUMNS && is_plain(weight, n_columns)) {
        copy_rows(w->slab, from, weight->row_stride, n);
    } else {
        stage_rows_of_panel(w->slab, weight, from, n, n_columns);
    }
    return w->slab;
}

#endif

/* The same panel, which was packed before the call or is packed now. */
static const operand *
many_rows_panel(linear_work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t column)
{
#if TERMS == 1
    if (w->packs) {
        return pack_panel(w, first, n, column);
    }
#endif
    return fetch_panel(w, first, n, column).at;
}

#endif
