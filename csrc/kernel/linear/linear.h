/* A product of rows with a matrix, y = x W + b, on the micro-kernel of attention. All forms
 * sum in chains of ATTN_BLOCK terms, so they give the same bits. */
#ifndef ATTN_KERNEL_LINEAR_LINEAR_H
#define ATTN_KERNEL_LINEAR_LINEAR_H

#include "kernel/linear/epilogue.h"
#include "kernel/linear/few_rows.h"
#include "kernel/linear/tile.h"
#if HAS_MANY_ROWS
#include "kernel/linear/many_rows.h"
#endif

/* Lays out the memory of a task, behind its work; returns the bytes it takes. With memory NULL
 * it only counts them. */
static size_t
lay_out_linear(const attn_linear_problem *l, char *memory, linear_work *w)
{
    arena a = {memory, 0};
    ptrdiff_t n_rows =
        least(l->batch.n * l->n_rows, l->many_rows ? ATTN_MANY_ROWS : ATTN_TASK_ROWS);
    ptrdiff_t n_tiles = tiles_of(n_rows);
    ptrdiff_t n_outputs = n_tiles * WIDTH * ATTN_LINEAR_COLUMNS;
    ptrdiff_t slab = STEPS * ATTN_LINEAR_COLUMNS;
    size_t n_blocks = (size_t)(l->n_in + ATTN_BLOCK - 1) / ATTN_BLOCK;

    arena_take(&a, sizeof *w);
    w->form = attn_linear_in_rows(l) ? ROW_FORM : TILE_FORM;
    w->n_steps =
        w->form == ROW_FORM && attn_is_transposed(l) ? LINE_TERMS / TERMS : STEPS;
    size_t block_size = (size_t)(w->n_steps * n_tiles * WIDTH) * sizeof(operand);
    w->rows = arena_reals(&a, LANES * SLAB_COLUMNS);
    if (w->form == ROW_FORM) {
        n_outputs = ATTN_FEW_ROWS * ATTN_FEW_ROWS_COLUMNS;
        slab = ROW_GROUP / TERMS * n_outputs;
        w->sums = arena_reals(&a, n_outputs);
    }
    w->output = arena_reals(&a, n_outputs);
    w->slab = arena_take(&a, (size_t)slab * sizeof(operand));
    w->keeps_input = w->form != ROW_FORM && l->n_out > ATTN_LINEAR_COLUMNS &&
                     a.used + n_blocks * block_size <=
                         (l->many_rows ? MAX_MANY_ROWS_WORKSPACE : MAX_WORKSPACE);
    w->input = arena_take(&a, w->keeps_input ? n_blocks * block_size : block_size);
    return a.used;
}

static size_t
linear_workspace_size(const attn_linear_problem *l)
{
    linear_work w;
    return lay_out_linear(l, NULL, &w);
}

/* Chooses the form of a task: that of the problem, unless W is in panels and rows are many. */
static void
choose_form(linear_work *w)
{
    bool packed = w->l->packed;

#if HAS_MANY_ROWS
    if (w->form == TILE_FORM && w->l->many_rows) {
        w->packs = !packed && packs_weight(w);
        w->form = packed || w->packs ? MANY_ROWS_FORM : TILE_FORM;
    }
#endif
    w->row_multiple = packed || w->form == MANY_ROWS_FORM ? ATTN_PANEL_COLUMNS : LANES;
}

/* Adds the products of elements first .. first + n - 1 of each row. `loaded`: the elements are in
 * memory already. */
static void
add_linear_block(linear_work *w, ptrdiff_t first, ptrdiff_t n, bool loaded)
{
#if HAS_MANY_ROWS
    if (w->form == MANY_ROWS_FORM) {
        add_linear_many_rows(w, first, n, loaded);
        return;
    }
#endif
    if (!loaded) {
        load_input(w, first, n);
    }
    if (w->form == ROW_FORM) {
        add_linear_rows(w, first, n);
    } else {
        add_linear_tiles(w, first, n);
    }
}

/* Computes the columns of w->task, no more than fit in its memory. `loaded`: the input is there
 * already. */
static void
run_columns(linear_work *w, bool loaded, const attn_worker *worker)
{
    ptrdiff_t n_in = w->l->n_in, n_terms = w->n_steps * TERMS, first = 0;

    do { /* there may be nothing to add up */
        ptrdiff_t n = least(n_in - first, n_terms);
        if (attn_gives_up(worker)) {
            return;
        }
        add_linear_block(w, first, n, loaded);
        first += n_terms;
    } while (first < n_in);
    if (w->form == TILE_FORM) {
        store_linear_tiles(w);
    } else if (w->form == ROW_FORM) {
        store_linear_rows(w);
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
    choose_form(w);
    for (; part.first_column < end; part.first_column += part.n_columns) {
        part.n_columns = end - part.first_column;
        if (w->form != ROW_FORM) {
            part.n_columns = least(part.n_columns, ATTN_LINEAR_COLUMNS);
        }
        run_columns(w, w->keeps_input && part.first_column > task->first_column,
                    worker);
    }
}

#endif
