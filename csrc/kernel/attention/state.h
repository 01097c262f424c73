/* The total of a task's rows in memory, between calls over a part of the keys each. */
#ifndef ATTN_KERNEL_ATTENTION_STATE_H
#define ATTN_KERNEL_ATTENTION_STATE_H

#include "kernel/attention/rows.h"

enum { STATE_OUTPUT = 2 /* behind maximum and sum */ };

/* Takes up what former keys have left, in a total that is clear. */
static void
load_state(work *w)
{
    const attn_problem *p = w->p;
    const real *rows[LANES] = {NULL};

    for (ptrdiff_t r = 0; r < w->task->n_rows; r += LANES) {
        ptrdiff_t n = least(w->task->n_rows - r, LANES), tile = r / WIDTH;
        real *lanes = w->total.output[tile] + r % WIDTH;
        for (ptrdiff_t i = 0; i < n; i++) {
            const char *at = w->task->state + row_offset(w, &p->state, r + i);
            const real *row = (const real *)(const void *)at;
            w->total.max[r + i] = row[0];
            w->total.sum[r + i] = row[1];
            rows[i] = row + STATE_OUTPUT;
        }
        transpose_in(lanes, WIDTH, rows, n, p->value_dim, NULL);
        w->total.empty[tile] = false;
    }
}

/* Leaves the total for later keys. Where nobody has seen one, the output is 0. */
static void
store_state(work *w)
{
    const attn_problem *p = w->p;

    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        const real *lane = w->total.output[r / WIDTH] + r % WIDTH;
        char *at = w->task->next_state + row_offset(w, &p->next_state, r);
        real *row = (real *)(void *)at;
        bool none = w->total.empty[r / WIDTH];
        row[0] = w->total.max[r];
        row[1] = w->total.sum[r];
        for (ptrdiff_t d = 0; d < p->value_dim; d++) {
            ONE_BY_ONE;
            row[STATE_OUTPUT + d] = none ? 0 : lane[d * WIDTH];
        }
    }
}

#endif
