/* A block of W packed, in panels of PANEL_ROWS columns: for several wide tiles it is worth
 * bringing what is read together to one place, in the order of reading. */
#ifndef ATTN_KERNEL_LINEAR_PACK_H
#define ATTN_KERNEL_LINEAR_PACK_H

#include "kernel/lanes.h"
#include "kernel/linear/input.h"
#include "kernel/linear/weights.h"

/* Is W packed for the task, that is for more rows than others have? */
static bool
packs_weight(const linear_work *w)
{
    attn_array columns = transposed_weight(w);

    return w->l->wide && !w->l->packed && w->task->n_rows > ATTN_TASK_ROWS &&
           (!attn_is_transposed(w->l) ||
            reads_in_place(&columns, w->l->n_in, AS_OPERANDS));
}

#if WIDE_TILES

_Static_assert(LANES >= PANEL_ROWS, "a panel's columns are lanes of one vector");

/* A row of the block, n columns, goes to row k of each panel. */
static INLINE void
scatter_row(operand *panels, ptrdiff_t k, const operand *row, ptrdiff_t n)
{
    operand *to = panels + k * PANEL_ROWS;

    for (; n >= PANEL_ROWS; n -= PANEL_ROWS, row += PANEL_ROWS, to += PACKED_PANEL) {
        memcpy(to, row, PANEL_ROWS * sizeof *to);
    }
    if (n > 0) {
        memcpy(to, row, (size_t)n * sizeof *to);
    }
}

/* Columns of W that are rows in memory: a panel is so many of them, transposed. What a vector has
 * beyond a panel's row is written over by the next one. */
static void
pack_columns(operand *panels, const attn_array *weight, const char *from, ptrdiff_t n,
             ptrdiff_t n_columns)
{
    for (ptrdiff_t j = 0; j < n_columns; j += PANEL_ROWS, panels += PACKED_PANEL) {
        const real *rows[LANES] = {NULL};
        for (ptrdiff_t i = 0; i < PANEL_ROWS && j + i < n_columns; i++) {
            rows[i] =
                (const real *)(const void *)(from + (j + i) * weight->column_stride);
        }
        transpose_in(panels, PANEL_ROWS, rows, least(n_columns - j, PANEL_ROWS), n,
                     NULL);
    }
}

/* Rows first .. first + n - 1 of W, the task's columns. */
static matrix
pack_block(linear_work *w, ptrdiff_t first, ptrdiff_t n)
{
    const attn_array *weight = &w->l->weight;
    const char *from = weight_at(w, first);
    ptrdiff_t n_columns = w->task->n_columns;
    bool in_place = reads_in_place(weight, w->l->n_out, AS_OPERANDS);

    if (attn_is_transposed(w->l)) {
        pack_columns(w->slab, weight, from, n, n_columns);
        return (matrix){w->slab, PANEL_ROWS};
    }
    for (ptrdiff_t k = 0; k < n; k++, from += weight->row_stride) {
        const operand *row = (const operand *)(const void *)from;
        if (!in_place) {
            stage_row(w->rows, from, weight->column_stride, n_columns, weight->dtype);
            row = w->rows;
        }
        scatter_row(w->slab, k, row, n_columns);
    }
    return (matrix){w->slab, PANEL_ROWS};
}

#endif
#endif
