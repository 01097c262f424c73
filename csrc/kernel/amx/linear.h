/* Linear products on a matrix unit, tile by tile. Rows of W come in pairs, as packed weights
 * have them; other weights are brought into a slab. Products of few and of many rows are all
 * computed here, so that they have the same bits. */
#ifndef ATTN_KERNEL_AMX_LINEAR_H
#define ATTN_KERNEL_AMX_LINEAR_H

#include "kernel/amx/linear_task.h"
#include "kernel/amx/linear_store.h"
#include "kernel/operands/lanes.h"
#include "kernel/operands/prefetch.h"

/* The address in the slab of the panel that begins at a column of the task. */
static operand *
slab_panel(const matrix_work *m, ptrdiff_t column)
{
    return m->linear.slab + column * (ATTN_BLOCK / TERMS);
}

/* Are the task's columns of W contiguous, so that they are lines of whole operands? */
static bool
has_lines(const linear_work *w, ptrdiff_t n)
{
    uintptr_t places = (uintptr_t)w->l->weight.data | (uintptr_t)n * sizeof(uint16_t) |
                       (uintptr_t)w->l->weight.column_stride;

    return attn_is_transposed(w->l) && places % sizeof(operand) == 0;
}

/* Packs LANES lines as columns of a panel, from column k of the task on. */
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
    const char *from = weight_at(w, first);
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

/* UNIT_TERMS rows of W: n rows from `from` on, and then 0. */
static const char *
whole_tiles(const matrix_work *m, const char *from, ptrdiff_t n)
{
    size_t used = (size_t)((n + 1) / TERMS * ATTN_PANEL_COLUMNS) * sizeof(operand);

    memset(m->tail, 0, UNIT_TERMS / TERMS * ATTN_PANEL_COLUMNS * sizeof(operand));
    memcpy(m->tail, from, used);
    u_publish(m->tail);
    return (const char *)m->tail;
}

/* Rows first .. of W, of a block of ATTN_BLOCK rows, in the panel of a column of the task. */
static const char *
unit_panel(const matrix_work *m, ptrdiff_t first, ptrdiff_t column)
{
    const linear_work *w = &m->linear;

    return w->l->packed ? panel_at(w, first, column)
                        : (const char *)slab_panel(m, column);
}

/* The panel of which a block's products prefetch lines, at the same places of it. Those of a single
 * group of rows wait for W, and need the next block; more rows have time for the next columns. */
static const char *
panel_ahead(const matrix_work *m, ptrdiff_t first, ptrdiff_t n, ptrdiff_t k,
            ptrdiff_t column)
{
    bool single = m->linear.task->n_rows <= 2 * UNIT_ROWS;

    if (!m->linear.l->packed) {
        return (const char *)m->linear.slab;
    }
    if (single && k + ATTN_BLOCK < n) {
        return panel_at(&m->linear, first + k + ATTN_BLOCK, column);
    }
    return panel_at(&m->linear, first + (single ? 0 : k), column + ATTN_PANEL_COLUMNS);
}

/* Adds the products of a segment to the sums of one row of tiles or two, from row r on. Meanwhile it
 * stores the rest of the outputs of the tiles before. */
static INLINE void
multiply_segment(const matrix_work *m, unit_sums sums, ptrdiff_t r, ptrdiff_t first,
                 ptrdiff_t n, ptrdiff_t column, unit_rest *rest, const bool two)
{
    const ptrdiff_t w_row = ATTN_PANEL_COLUMNS * sizeof(operand);
    const ptrdiff_t width = sums.row * (ptrdiff_t)sizeof(real);
    const ptrdiff_t n_stored = 2 * UNIT_ROWS * UNIT_TERMS / most(n, 1) + 1;
    const char *x = unit_x(m, r, first);
    const step_share share = share_of(m, r);

    if (first == 0) {
        u_clear();
    } else {
        u_load(sums.at, width, two);
    }
    for (ptrdiff_t k = 0; k < n; k += ATTN_BLOCK) {
        const char *from = unit_panel(m, first + k, column);
        const char *ahead = panel_ahead(m, first, n, k, column);
        ptrdiff_t left = least(n - k, ATTN_BLOCK);
        for (; left > 0; left -= UNIT_TERMS) {
            if (left < UNIT_TERMS) {
                from = whole_tiles(m, from, left);
            }
            u_multiply((const uint16_t *)(const void *)x, m->x_row, from, w_row, two);
            prefetch_share(share, ahead, !two);
            store_unit_rows(rest, n_stored);
            x += UNIT_TERMS * sizeof(uint16_t);
            from += UNIT_TERMS / TERMS * w_row;
            ahead += UNIT_TERMS / TERMS * w_row;
        }
    }
    store_unit_rows(rest, rest->n_rows);
    u_store(sums.at, width, two);
    u_publish(sums.at);
}

/* Adds the products of a segment for all of the task's rows and columns, and stores the outputs if
 * it is the last one. */
static void
multiply_columns_of_w(matrix_work *m, ptrdiff_t first, ptrdiff_t n)
{
    const linear_work *w = &m->linear;
    ptrdiff_t n_rows = w->task->n_rows;
    bool last = first + n >= w->l->n_in;
    unit_outputs to = unit_outputs_of(m);
    unit_rest rest = {.n_rows = 0};

    if (!w->l->packed) {
        pack_block(m, first, n);
    }
    u_begin(unit_rows(m));
    for (ptrdiff_t k = 0; k < w->task->n_columns; k += ATTN_PANEL_COLUMNS) {
        for (ptrdiff_t r = 0; r < n_rows; r += 2 * UNIT_ROWS) {
            unit_sums sums = sums_at(m, r, k);
            if (r + UNIT_ROWS < n_rows) {
                multiply_segment(m, sums, r, first, n, k, &rest, true);
            } else {
                multiply_segment(m, sums, r, first, n, k, &rest, false);
            }
            if (last) {
                store_unit_sums(m, &to, sums, r, k, &rest);
            }
        }
    }
    u_end();
    store_unit_rows(&rest, rest.n_rows);
}

static void
run_matrix(const attn_linear_problem *l, const attn_linear_task *task,
           const attn_worker *worker)
{
    matrix_work *m = worker->workspace;
    attn_linear_task part = *task;
    ptrdiff_t end = task->first_column + task->n_columns;

    lay_out_matrix(l, worker->workspace, m);
    m->linear.l = l;
    m->linear.task = &part;
    for (; part.first_column < end; part.first_column += part.n_columns) {
        bool loaded = m->linear.keeps_input && part.first_column > task->first_column;
        ptrdiff_t first = 0;
        part.n_columns = least(end - part.first_column, ATTN_LINEAR_COLUMNS);
        do { /* there may be nothing to add up */
            ptrdiff_t n = least(l->n_in - first, m->segment);
            if (attn_gives_up(worker)) { /* other code may use the tiles there */
                return;
            }
            if (!loaded) {
                load_x(m, first, n);
            }
            multiply_columns_of_w(m, first, n);
            first += m->segment;
        } while (first < l->n_in);
    }
}

#endif
