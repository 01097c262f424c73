/* What is done last to outputs of a wide task, a panel's columns at a time, while their sums are in
 * the caches: and nothing waits for outputs being stored, as other products come next. */
#ifndef ATTN_KERNEL_LINEAR_FINISH_PANEL_H
#define ATTN_KERNEL_LINEAR_FINISH_PANEL_H

#include "kernel/linear/finish_rows.h"
#include "kernel/linear/panel.h"

#if WIDE_TASKS

/* Changes a row of a plain panel, activated sums, and stores it. */
static INLINE void
store_changed_row(const attn_linear_problem *l, const linear_panel *p, ptrdiff_t r,
                  real *to, const real *from)
{
    UNROLLED for (int v = 0; v < ATTN_PANEL_COLUMNS; v += LANES)
    {
        v_real x = v_load(from + v);
        if (p->times != NULL) {
            x = v_mul(x, v_load(p->times + r * line_of(&l->times) + v));
        }
        if (p->residual != NULL) {
            x = v_add(x, v_load(p->residual + r * line_of(&l->residual) + v));
        }
        v_store(to + v, x);
    }
}

/* Stores all rows of a plain panel, whose sums and bias are there. */
static void
store_panel(const linear_work *w, const linear_panel *p)
{
    const attn_linear_problem *l = w->l;
    bool changes = is_changed(l);
    real *sums = w->output + p->column;

    for (ptrdiff_t r = 0; r < w->task->n_rows; r++, sums += row_width(w)) {
        real *to = (real *)(void *)(p->output + r * l->output.row_stride);
        activate(changes ? sums : to, sums, NULL, LANES, PANEL_VECTORS, l->activation);
        if (changes) {
            store_changed_row(l, p, r, to, sums);
        }
    }
}

/* Stores what the product has not. */
static void
finish_panel(linear_work *w, const linear_panel *p, const linear_bias *bias)
{
    ptrdiff_t n_rows = w->task->n_rows;
    ptrdiff_t n_stored = p->direct ? n_rows / WIDE_ROWS * WIDE_ROWS : 0;
    linear_part rest = {n_stored, n_rows - n_stored, p->column, p->n_columns};

    if (p->plain && !p->direct) {
        store_panel(w, p);
    } else {
        store_linear_part(w, &rest, p->plain ? NULL : bias);
    }
}

#endif
#endif
