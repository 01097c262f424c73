/* A product of rows with a matrix, y = x W + b, on the micro-kernel of attention. Both forms
 * sum in chains of ATTN_BLOCK terms, so they give the same bits. */
#ifndef ATTN_KERNEL_LINEAR_LINEAR_H
#define ATTN_KERNEL_LINEAR_LINEAR_H

#include "kernel/linear/row.h"
#include "kernel/linear/tile.h"

static void
run_linear(const attn_linear_problem *l, const attn_linear_task *task,
           const attn_worker *worker)
{
    linear_work *w = worker->workspace;
    ptrdiff_t first = 0;

    w->l = l;
    w->task = task;
    lay_out_linear(l, worker->workspace, w);
    do { /* there may be nothing to add up */
        ptrdiff_t n = least(l->n_in - first, ATTN_BLOCK);
        if (attn_gives_up(worker)) {
            return;
        }
        load_input(w, first, n);
        if (w->row_form) {
            add_linear_rows(w, first, n);
        } else {
            add_linear_tiles(w, first, n);
        }
        first += ATTN_BLOCK;
    } while (first < l->n_in);
    if (w->row_form) {
        store_linear_rows(w);
    } else {
        store_linear_tiles(w);
    }
}

#endif
