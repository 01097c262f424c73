/* A panel's columns of a wide task's outputs, and where the sums of its products go. */
#ifndef ATTN_KERNEL_LINEAR_PANEL_H
#define ATTN_KERNEL_LINEAR_PANEL_H

#include "kernel/linear/finish.h"
#include "kernel/linear/input.h"
#include "kernel/product_wide.h"

#if WIDE_TASKS

/* Are an array's rows adjacent reals, evenly apart, where there is one? */
static bool
has_even_reals(const attn_linear_problem *l, const attn_array *array)
{
    return array->data == NULL ||
           (is_plain(array, ATTN_PANEL_COLUMNS) && has_even_rows(l, array));
}

/* Are outputs bfloat16 numbers, adjacent and evenly apart, that nothing changes? */
static bool
has_even_halves(const attn_linear_problem *l)
{
    const attn_array *output = &l->output;

    return output->dtype == ATTN_BF16 && output->column_stride == sizeof(uint16_t) &&
           has_even_rows(l, output) && l->activation == ATTN_IDENTITY && !is_changed(l);
}

/* Are whole panels finished one by one, or all rows behind the last? */
static bool
has_plain_panels(const attn_linear_problem *l)
{
    return has_even_halves(l) ||
           (has_even_reals(l, &l->output) && has_even_reals(l, &l->times) &&
            has_even_reals(l, &l->residual));
}

/* Of a panel, where outputs and what changes them are from row 0 on, or NULL. */
typedef struct {
    ptrdiff_t column, n_columns;
    bool plain; /* is it whole, and finished by itself? The bias is in its sums then. */
    bool direct; /* does the product store whole groups of its rows? */
    char *output;
    const real *times, *residual;
} linear_panel;

static real *
reals_at(const linear_work *w, const attn_array *array, ptrdiff_t column)
{
    bool is_there = array->data != NULL;
    return is_there ? (real *)(void *)output_at(w, array, 0, column) : NULL;
}

/* Reals from row to row. */
static ptrdiff_t
line_of(const attn_array *array)
{
    return array->row_stride / (ptrdiff_t)sizeof(real);
}

static linear_panel
open_panel(const linear_work *w, ptrdiff_t column, bool plain)
{
    const attn_linear_problem *l = w->l;
    ptrdiff_t n_columns = least(w->task->n_columns - column, ATTN_PANEL_COLUMNS);
    linear_panel p = {.column = column, .n_columns = n_columns};

    if (plain && n_columns == ATTN_PANEL_COLUMNS) {
        p.plain = true;
        p.direct = l->activation == ATTN_IDENTITY && l->times.data == NULL;
        p.output = output_at(w, &l->output, 0, column);
        p.times = reals_at(w, &l->times, column);
        p.residual = reals_at(w, &l->residual, column);
    }
    return p;
}

/* Says where the sums of the group from row r on go: to C, or to the output. */
static void
place_sums(const linear_work *w, const linear_panel *p, ptrdiff_t r, wide_product *m)
{
    const attn_linear_problem *l = w->l;

    m->to = (char *)(void *)m->c;
    m->to_row = m->c_row * (ptrdiff_t)sizeof(real);
    m->rounds = false;
    m->residual = NULL;
    if (!p->direct || r + WIDE_ROWS > w->task->n_rows) {
        return;
    }
    m->to = p->output + r * l->output.row_stride;
    m->to_row = l->output.row_stride;
    m->rounds = l->output.dtype != REAL_DTYPE;
    if (p->residual != NULL) {
        m->residual_row = line_of(&l->residual);
        m->residual = p->residual + r * m->residual_row;
        prefetch rows = {(const char *)m->residual, l->residual.row_stride,
                         ATTN_PANEL_COLUMNS * sizeof(real), WIDE_ROWS};
        prefetch_near(&rows);
    }
}

#endif
#endif
