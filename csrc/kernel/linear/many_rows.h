/* The form of a linear product for many rows: those of x are A, and W is packed in panels,
 * before the call or here. */
#ifndef ATTN_KERNEL_LINEAR_MANY_ROWS_H
#define ATTN_KERNEL_LINEAR_MANY_ROWS_H

#include "kernel/linear/direct.h"
#include "kernel/linear/pack.h"

/* Do rows of x lie beside each other, as those of a transposed array? */
static bool
has_adjacent_rows(const linear_work *w)
{
    const attn_array *input = &w->l->input;

    return w->l->batch.n == 1 &&
           input->row_stride == attn_storage_of(input->dtype)->bytes &&
           input->column_stride != input->row_stride;
}

/* Bytes from step to step up to which adjacent rows are read where they lie: a block of steps is
 * then in 64 pages, which a CPU finds at once. Not where steps follow each other without jumps,
 * by operands whose distance the compiler knows. */
enum { MAX_STEP = 2048 };

/* Are rows of x read where they lie? */
static bool
has_rows_in_place(const linear_work *w)
{
    const attn_linear_problem *l = w->l;
    const attn_array *input = &l->input;
    bool plain = is_plain(input, l->n_in) && has_even_rows(l, input);
    bool near = PANEL_STEPS == 1 && input->dtype == REAL_DTYPE &&
                has_adjacent_rows(w) && input->column_stride <= MAX_STEP;

    return TERMS == 1 && (plain || near) && w->task->n_rows % GROUP_ROWS == 0;
}

/* Groups of GROUP_ROWS rows: the first operand, and the operands from row to row, from step to
 * step and from group to group. */
typedef struct {
    const operand *at;
    ptrdiff_t row, step, group;
} row_groups;

#if TERMS == 1

/* Copies one element of all rows, which are adjacent, to its place in (groups, STEPS,
 * GROUP_ROWS). */
static void
scatter_elements(operand *to, const operand *from, ptrdiff_t n_rows)
{
    for (; n_rows >= GROUP_ROWS; n_rows -= GROUP_ROWS, from += GROUP_ROWS) {
        memcpy(to, from, GROUP_ROWS * sizeof *to);
        to += STEPS * GROUP_ROWS;
    }
    if (n_rows > 0) {
        memset(to, 0, GROUP_ROWS * sizeof *to);
        memcpy(to, from, (size_t)n_rows * sizeof *to);
    }
}

/* Copies n elements of all rows, which are adjacent reals, to (groups, STEPS, GROUP_ROWS), two
 * groups at a time: so lines are read once, and places are written in order. */
static void
copy_groups(const linear_work *w, operand *to, const char *from, ptrdiff_t n)
{
    enum { GROUP = STEPS * GROUP_ROWS };
    const ptrdiff_t step = w->l->input.column_stride;
    const size_t size = GROUP_ROWS * sizeof *to;

    for (ptrdiff_t r = 0; r < w->task->n_rows; r += 2 * GROUP_ROWS, to += 2 * GROUP) {
        const char *at = from + r * (ptrdiff_t)sizeof *to;
        for (ptrdiff_t k = 0; k < n; k++, at += step) {
            memcpy(to + k * GROUP_ROWS, at, size);
            memcpy(to + k * GROUP_ROWS + GROUP, at + size, size);
        }
    }
}

/* Elements first .. first + n - 1 of each row, as (groups of rows, STEPS, GROUP_ROWS). */
static void
load_adjacent_rows(linear_work *w, ptrdiff_t first, ptrdiff_t n)
{
    const attn_array *input = &w->l->input;
    const char *from = linear_row(w, input, 0) + first * input->column_stride;
    operand *to = input_block(w, first);

    if (input->dtype == REAL_DTYPE && w->task->n_rows % (2 * GROUP_ROWS) == 0) {
        copy_groups(w, to, from, n);
        return;
    }
    for (ptrdiff_t k = 0; k < n; k++, from += input->column_stride) {
        stage_row(w->rows, from, input->row_stride, w->task->n_rows, input->dtype);
        scatter_elements(to + k * GROUP_ROWS, w->rows, w->task->n_rows);
    }
}

#endif

/* Elements first .. first + n - 1 of each row: in place, or copied, unless they were `loaded`
 * before. Rows that the last group lacks are 0. */
static row_groups
fetch_row_groups(linear_work *w, ptrdiff_t first, ptrdiff_t n, bool loaded)
{
    operand *staged = input_block(w, first);

    if (has_rows_in_place(w)) {
        const attn_array *x = &w->l->input;
        const char *at = linear_row(w, x, 0) + first * x->column_stride;
        ptrdiff_t row = x->row_stride / (ptrdiff_t)sizeof(operand);
        ptrdiff_t step = x->column_stride / (ptrdiff_t)sizeof(operand);
        return (row_groups){(const operand *)(const void *)at, row, step,
                            GROUP_ROWS * row};
    }
#if TERMS == 1
    if (has_adjacent_rows(w)) {
        if (!loaded) {
            load_adjacent_rows(w, first, n);
        }
        return (row_groups){staged, 1, GROUP_ROWS, GROUP_ROWS * STEPS};
    }
#endif
    if (!loaded) {
        stage_input(w, first, n, round_up(w->task->n_rows, GROUP_ROWS));
    }
    return (row_groups){staged, STEPS, 1, GROUP_ROWS * STEPS};
}

/* Row form is for so many rows with packed weights. Where it has sums of one vector only of 8
 * rows, it reads lines twice, and the form for many rows is faster from memory and from caches. */
enum {
    NARROW_ROWS = PANEL_ROWS * TILE_VECTORS / ATTN_FEW_ROWS > 1 ? ATTN_NARROW_ROWS
                                                                : ATTN_FEW_ROWS / 2
};

/* Most rows of a task, whatever the product. CPUs with short vectors may have smaller second-level
 * caches: with half as many rows Zen 3 is up to 1.05 times as fast. */
static ptrdiff_t
linear_many_rows(const attn_linear_problem *l)
{
    (void)l;
    return LANES > 8 ? ATTN_MANY_ROWS : ATTN_MANY_ROWS / 2;
}

/* What to prefetch during the product with the panel of a column, of the block from row `first`
 * on: the next panel, as a single row. */
static prefetch
next_panel(const linear_work *w, ptrdiff_t first, ptrdiff_t column)
{
    prefetch next = panel_prefetch(w, first, column);

    next.bytes *= next.n_rows;
    next.n_rows = next.n_rows > 0;
    return next;
}

/* Spreads a prefetch over n_parts products of n_steps steps. */
static line_prefetch
spread_prefetch(const linear_work *w, prefetch next, ptrdiff_t n_steps,
                ptrdiff_t n_parts)
{
    return line_prefetch_of(&next, n_parts, most(prefetches_of(n_steps), 1),
                            (const char *)w->slab);
}

/* Makes the products prefetch a panel: in two pieces at once where products are so few that they do
 * not prefetch each of its lines. The first piece has half as many prefetches. */
static void
prefetch_panel(const linear_work *w, many_rows_product *m, prefetch panel,
               ptrdiff_t n_products)
{
    if (panel.bytes > n_products * 2 * prefetches_of(m->n_steps) * CACHE_LINE) {
        prefetch piece = panel;
        piece.bytes /= 3;
        panel.at += piece.bytes;
        panel.bytes -= piece.bytes;
        m->next[0] = spread_prefetch(w, piece, m->n_steps, n_products);
    }
    m->next[1] = spread_prefetch(w, panel, m->n_steps, n_products);
}

/* Multiplies all groups of the task's rows by a part of a panel. */
static void
multiply_groups(const linear_work *w, const linear_columns *part, many_rows_product *m,
                ptrdiff_t a_group)
{
    for (ptrdiff_t r = 0; r < w->task->n_rows; r += GROUP_ROWS) {
        place_sums(w, part, r, m);
        multiply_many_rows(m);
        m->a += a_group;
        m->c += GROUP_ROWS * m->c_row;
        next_part(&m->next[0]);
        next_part(&m->next[1]);
    }
}

/* Adds the products of elements first .. first + n - 1 of each row, in one chain, and stores the
 * outputs behind the last elements. `loaded`: the elements are in memory already. */
static void
add_linear_many_rows(linear_work *w, ptrdiff_t first, ptrdiff_t n, bool loaded)
{
    const ptrdiff_t width = row_width(w), n_steps = (n + TERMS - 1) / TERMS;
    ptrdiff_t n_groups = (w->task->n_rows + GROUP_ROWS - 1) / GROUP_ROWS;
    ptrdiff_t n_products = width / PART_COLUMNS * n_groups;
    bool last = first + ATTN_BLOCK >= w->l->n_in;
    bool direct = last && stores_directly(w->l);
    linear_bias room;
    real *behind_panel = (real *)(void *)(w->slab + STEPS * ATTN_PANEL_COLUMNS);
    const linear_bias *bias = direct ? fetch_bias(w, &room, behind_panel) : NULL;
    row_groups input = fetch_row_groups(w, first, n, loaded);
    many_rows_product m = {.c_row = width,
                           .a_row = input.row,
                           .a_step = input.step,
                           .n_steps = n_steps,
                           .add = first > 0};

    m.next[0] =
        spread_prefetch(w, input_prefetch(w, first + ATTN_BLOCK), n_steps, n_products);
    if (w->packs) {
        m.next[1] = spread_prefetch(w, weights_prefetch(w, first + ATTN_BLOCK), n_steps,
                                    n_products);
    }
    const operand *panel = NULL;
    for (ptrdiff_t k = 0; k < w->task->n_columns; k += PART_COLUMNS) {
        linear_columns part = open_columns(w, k, direct);
        if (PANEL_PARTS == 1 || k % ATTN_PANEL_COLUMNS == 0) {
            panel = many_rows_panel(w, first, n, k);
            if (!w->packs) {
                prefetch_panel(w, &m, next_panel(w, first, k), PANEL_PARTS * n_groups);
            }
        }
        m.a = input.at;
        m.c = w->output + k;
        m.b = panel + k % ATTN_PANEL_COLUMNS;
        m.bias = part.direct && bias != NULL ? bias->whole + k : NULL;
        multiply_groups(w, &part, &m, input.group);
        if (direct) {
            store_rest(w, &part, bias);
        }
    }
    if (last && !direct) {
        store_linear_rows(w);
    }
}

#endif
