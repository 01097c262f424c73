/* Wide form of a linear product, for many rows: those of x are A, and W is packed in panels,
 * before the call or here. */
#ifndef ATTN_KERNEL_LINEAR_WIDE_H
#define ATTN_KERNEL_LINEAR_WIDE_H

#include "kernel/linear/direct.h"
#include "kernel/linear/pack.h"
#include "kernel/linear/wide_input.h"

#if WIDE_TASKS

/* Rows of a wide task, at most, whatever the product. */
static ptrdiff_t
linear_wide_rows(const attn_linear_problem *l)
{
    (void)l;
    return ATTN_WIDE_ROWS;
}

/* What is to be asked for while a block from row `first` on is multiplied by the panel that
 * begins at a column: the panel behind it, which is one line. */
static prefetch
next_panel(const linear_work *w, ptrdiff_t first, ptrdiff_t column)
{
    prefetch next = panel_prefetch(w, first, column);

    next.bytes *= next.n_rows;
    next.n_rows = next.n_rows > 0;
    return next;
}

/* Rows that are asked for in n_parts parts, each of a product of so many steps. */
static trail
block_trail(const linear_work *w, prefetch next, ptrdiff_t n_steps, ptrdiff_t n_parts)
{
    return trail_of(&next, n_parts, most(n_steps, 1), (const char *)w->slab);
}

/* A panel is asked for meanwhile: on both trails, where few groups of rows leave no step for each
 * of its lines on one. */
static void
ask_for_panel(const linear_work *w, wide_product *m, prefetch panel, ptrdiff_t n_groups)
{
    if (panel.bytes > n_groups * m->n_steps * CACHE_LINE) {
        prefetch half = panel;
        half.bytes /= 2;
        panel.at += half.bytes;
        panel.bytes -= half.bytes;
        m->trails[0] = block_trail(w, half, m->n_steps, n_groups);
    }
    m->trails[1] = block_trail(w, panel, m->n_steps, n_groups);
}

/* Multiplies all groups of the task's rows by a panel. */
static void
multiply_groups(const linear_work *w, const linear_panel *panel, wide_product *m,
                ptrdiff_t a_group)
{
    for (ptrdiff_t r = 0; r < w->task->n_rows; r += WIDE_ROWS) {
        place_sums(w, panel, r, m);
        multiply_wide_rows(m);
        m->a += a_group;
        m->c += WIDE_ROWS * m->c_row;
        next_part(&m->trails[0]);
        next_part(&m->trails[1]);
    }
}

/* Adds the products of elements first .. first + n - 1 of each row, in one chain, and stores the
 * outputs if these are the last. They are there already if they are `loaded`. */
static void
add_linear_wide(linear_work *w, ptrdiff_t first, ptrdiff_t n, bool loaded)
{
    const ptrdiff_t width = row_width(w), n_steps = (n + TERMS - 1) / TERMS;
    ptrdiff_t n_groups = (w->task->n_rows + WIDE_ROWS - 1) / WIDE_ROWS;
    ptrdiff_t n_parts = width / ATTN_PANEL_COLUMNS * n_groups;
    bool last = first + ATTN_BLOCK >= w->l->n_in;
    bool direct = last && stores_directly(w->l);
    linear_bias room;
    real *behind_panel = (real *)(void *)(w->slab + STEPS * ATTN_PANEL_COLUMNS);
    const linear_bias *bias = direct ? fetch_bias(w, &room, behind_panel) : NULL;
    wide_input input = fetch_wide_input(w, first, n, loaded);
    wide_product m = {.c_row = width,
                      .a_row = input.row,
                      .a_step = input.step,
                      .n_steps = n_steps,
                      .add = first > 0};

    m.trails[0] =
        block_trail(w, input_prefetch(w, first + ATTN_BLOCK), n_steps, n_parts);
    if (w->packs) {
        m.trails[1] =
            block_trail(w, weights_prefetch(w, first + ATTN_BLOCK), n_steps, n_parts);
    }
    for (ptrdiff_t k = 0; k < w->task->n_columns; k += ATTN_PANEL_COLUMNS) {
        linear_panel panel = open_panel(w, k, direct);
        m.a = input.at;
        m.c = w->output + k;
        m.b = wide_panel(w, first, n, k);
        m.bias = panel.direct && bias != NULL ? bias->whole + k : NULL;
        if (!w->packs) {
            ask_for_panel(w, &m, next_panel(w, first, k), n_groups);
        }
        multiply_groups(w, &panel, &m, input.group);
        if (direct) {
            store_rest(w, &panel, bias);
        }
    }
    if (last && !direct) {
        store_linear_rows(w);
    }
}

#endif
#endif
