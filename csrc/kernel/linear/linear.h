/* A product of rows with a matrix, y = x W + b, on the micro-kernel of attention. Both forms
 * sum in chains of ATTN_BLOCK terms, so they give the same bits. */
#ifndef ATTN_KERNEL_LINEAR_LINEAR_H
#define ATTN_KERNEL_LINEAR_LINEAR_H

#include "kernel/linear/row.h"
#include "kernel/linear/tile.h"

/* Computes the columns of w->task, at most as many as are computed at a time. The input is
 * there already if it is `loaded`. */
static void
run_columns(linear_work *w, bool loaded, const attn_worker *worker)
{
    ptrdiff_t n_in = w->l->n_in, first = 0;

    do { /* there may be nothing to add up */
        ptrdiff_t n = least(n_in - first, ATTN_BLOCK);
        if (attn_gives_up(worker)) {
            return;
        }
        if (!loaded) {
            load_input(w, first, n);
        }
        if (w->row_form) {
            add_linear_rows(w, first, n);
        } else {
            add_linear_tiles(w, first, n);
        }
        first += ATTN_BLOCK;
    } while (first < n_in);
    if (w->row_form) {
        store_linear_rows(w);
    } else {
        store_linear_tiles(w);
    }
}

static void
run_linear(const attn_linear_problem *l, const attn_linear_task *task,
           const attn_worker *worker)
{
    linear_work *w = worker->workspace;
    attn_linear_task part = *task;
    ptrdiff_t end = task->first_column + task->n_columns;

    w->l = l;
    w->task = &part;
    lay_out_linear(l, worker->workspace, w);
    w->packs = packs_weight(w);
    for (; part.first_column < end; part.first_column += part.n_columns) {
        part.n_columns = end - part.first_column;
        if (!w->row_form) {
            part.n_columns = least(part.n_columns, ATTN_LINEAR_COLUMNS);
        }
        run_columns(w, w->keeps_input && part.first_column > task->first_column,
                    worker);
    }
}

#endif
