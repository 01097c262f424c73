/* Linear products on a CPU's matrix unit, tile by tile. All numbers of rows take this way, so
 * that they have the same bits. */
#ifndef ATTN_KERNEL_LINEAR_MATRIX_UNIT_H
#define ATTN_KERNEL_LINEAR_MATRIX_UNIT_H

#include "kernel/linear/finish_rows.h"
#include "kernel/linear/unit_weights.h"

#ifdef MATRIX_UNIT

/* Adds the products of a segment to the sums of one row of tiles or two, from row r on. */
static INLINE void
multiply_segment(const matrix_work *m, ptrdiff_t r, ptrdiff_t first, ptrdiff_t n,
                 ptrdiff_t column, const bool two)
{
    const linear_work *w = &m->linear;
    const ptrdiff_t w_row = ATTN_PANEL_COLUMNS * sizeof(operand);
    ptrdiff_t width = row_width(w) * (ptrdiff_t)sizeof(real);
    const char *x = x_segment(m, first) + r * X_ROW;
    real *sums = w->output + r * row_width(w) + column;

    if (first == 0) {
        u_clear();
    } else {
        u_load(sums, width, two);
    }
    for (ptrdiff_t k = 0; k < n; k += UNIT_TERMS) {
        const char *from =
            (const char *)(slab_panel(m, column) + k / TERMS * ATTN_PANEL_COLUMNS);
        if (w->l->packed) {
            from = panel_at(w, (first + k) / ATTN_BLOCK * ATTN_BLOCK, column) +
                   k % ATTN_BLOCK / TERMS * w_row;
        }
        u_multiply(
            (const uint16_t *)(const void *)(x + k * (ptrdiff_t)sizeof(uint16_t)),
            X_ROW, whole_tiles(m, from, n - k), w_row, two);
    }
    u_store(sums, width, two);
}

/* Adds the products of a segment for all of the task's rows and columns. */
static void
multiply_columns_of_w(matrix_work *m, ptrdiff_t first, ptrdiff_t n)
{
    const linear_work *w = &m->linear;
    ptrdiff_t n_rows = w->task->n_rows;

    if (!w->l->packed) {
        pack_block(m, first, n);
    }
    u_begin(unit_rows(m));
    for (ptrdiff_t k = 0; k < w->task->n_columns; k += ATTN_PANEL_COLUMNS) {
        ptrdiff_t r = 0;
        for (; r + UNIT_ROWS < n_rows; r += 2 * UNIT_ROWS) {
            multiply_segment(m, r, first, n, k, true);
        }
        if (r < n_rows) {
            multiply_segment(m, r, first, n, k, false);
        }
    }
    u_end();
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
            ptrdiff_t n = least(l->n_in - first, segment_of(m));
            if (attn_gives_up(worker)) { /* other code may use the tiles there */
                return;
            }
            if (!loaded) {
                load_x(m, first, n);
            }
            multiply_columns_of_w(m, first, n);
            first += segment_of(m);
        } while (first < l->n_in);
        store_linear_rows(&m->linear);
    }
}

#endif
#endif
