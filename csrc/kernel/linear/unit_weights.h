/* What a matrix unit multiplies with: pairs of rows of W, as they are packed, or brought into
 * a slab. */
#ifndef ATTN_KERNEL_LINEAR_UNIT_WEIGHTS_H
#define ATTN_KERNEL_LINEAR_UNIT_WEIGHTS_H

#include "kernel/linear/panels.h"
#include "kernel/lanes.h"
#include "kernel/linear/unit_rows.h"
#include "kernel/prefetch.h"

#ifdef MATRIX_UNIT

/* Elements of x that are multiplied before the next ones: few where W is not packed, for its
 * block has to fit in the slab. */
static ptrdiff_t
segment_of(const matrix_work *m)
{
    return m->linear.l->packed ? SEGMENT : ATTN_BLOCK;
}

/* Where the slab has the panel that begins at a column of the task. */
static operand *
slab_panel(const matrix_work *m, ptrdiff_t column)
{
    return m->linear.slab + column * (ATTN_BLOCK / TERMS);
}

/* Are the task's columns of W lines of whole operands? */
static bool
has_lines(const linear_work *w, ptrdiff_t n)
{
    uintptr_t places = (uintptr_t)w->l->weight.data | (uintptr_t)n * sizeof(uint16_t) |
                       (uintptr_t)w->l->weight.column_stride;

    return attn_is_transposed(w->l) && places % sizeof(operand) == 0;
}

/* Packs LANES columns of a panel, those lines, from column k of the task on. */
static void
pack_lines(const matrix_work *m, const char *from, ptrdiff_t n, ptrdiff_t k)
{
    ptrdiff_t stride = m->linear.l->weight.column_stride;
    ptrdiff_t n_lines = least(m->linear.task->n_columns - k, LANES);
    ptrdiff_t panel = k / ATTN_PANEL_COLUMNS * ATTN_PANEL_COLUMNS;
    const real *lines[LANES] = {NULL};
    prefetch ahead = {.at = from + (k + LANES) * stride,
                      .row = stride,
                      .bytes = n * (ptrdiff_t)sizeof(uint16_t),
                      .n_rows = LANES};

    prefetch_rows(&ahead, 0, LANES);
    for (ptrdiff_t i = 0; i < n_lines; i++) {
        ONE_BY_ONE;
        lines[i] = (const real *)(const void *)(from + (k + i) * stride);
    }
    transpose_in((real *)slab_panel(m, panel) + (k - panel), ATTN_PANEL_COLUMNS, lines,
                 n_lines, n / TERMS, NULL);
}

/* Packs rows first .. first + n - 1 of W, the task's columns, into the slab. */
static void
pack_block(const matrix_work *m, ptrdiff_t first, ptrdiff_t n)
{
    const linear_work *w = &m->linear;
    const attn_array *weight = &w->l->weight;
    const char *from = weight->data + first * weight->row_stride +
                       w->task->first_column * weight->column_stride;
    bool lines = has_lines(w, n);

    for (ptrdiff_t k = 0; lines && k < row_width(w); k += LANES) {
        pack_lines(m, from, n, k);
    }
    for (ptrdiff_t j = 0; !lines && j < n;
         j += TERMS, from += TERMS * weight->row_stride) {
        const char *next = j + 1 < n ? from + weight->row_stride : NULL;
        prefetch ahead = prefetch_of(weight, from + ROW_GROUP * weight->row_stride,
                                     w->task->n_columns, TERMS);
        prefetch_rows(&ahead, 0, ahead.n_rows);
        for (ptrdiff_t k = 0; k < w->task->n_columns; k += ATTN_PANEL_COLUMNS) {
            ptrdiff_t at = k * weight->column_stride;
            ptrdiff_t width = least(w->task->n_columns - k, ATTN_PANEL_COLUMNS);
            operand *to = slab_panel(m, k) + j / TERMS * ATTN_PANEL_COLUMNS;
            stage_rows(to, from + at, next == NULL ? NULL : next + at,
                       weight->column_stride, width, weight->dtype);
            memset(to + width, 0, (size_t)(ATTN_PANEL_COLUMNS - width) * sizeof *to);
        }
    }
}

/* UNIT_TERMS rows of W, n of them to be read at `from`, the others 0. */
static const char *
whole_tiles(const matrix_work *m, const char *from, ptrdiff_t n)
{
    size_t used = (size_t)((n + 1) / TERMS * ATTN_PANEL_COLUMNS) * sizeof(operand);

    if (n >= UNIT_TERMS) {
        return from;
    }
    memset(m->tail, 0, UNIT_TERMS / TERMS * ATTN_PANEL_COLUMNS * sizeof(operand));
    memcpy(m->tail, from, used);
    u_publish(m->tail);
    return (const char *)m->tail;
}

#endif
#endif
