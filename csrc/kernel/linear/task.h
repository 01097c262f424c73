/* A linear task's work: what is computed, and the memory for it. */
#ifndef ATTN_KERNEL_LINEAR_TASK_H
#define ATTN_KERNEL_LINEAR_TASK_H

#include "core/linear.h"
#include "kernel/arena.h"
#include "kernel/convert.h"
#include "kernel/operand.h"

enum {
    STEPS = ATTN_BLOCK / TERMS,   /* of a chain */
    MAX_WORKSPACE = 1 << 20,      /* bytes, where there is a choice, */
    MAX_WIDE_WORKSPACE = 3 << 19, /* and for a wide task */
    ROW_GROUP = 8 /* rows of W that row form takes at a time, 4 KB apart */
};

_Static_assert(ATTN_LINEAR_COLUMNS % ATTN_PANEL_COLUMNS == 0, "whole panels");

/* Tile form: rows of x are lanes. Row form, for few rows, and wide form, for many: columns of W
 * are. */
typedef enum { TILE_FORM, ROW_FORM, WIDE_FORM } linear_form;

typedef struct {
    const attn_linear_problem *l;
    const attn_linear_task *task;
    linear_form form;
    ptrdiff_t unit;   /* rows of outputs are so many columns long, or a multiple */
    bool keeps_input; /* of all blocks, for other columns of the task */
    operand
        *input; /* (blocks if kept, tiles, STEPS, WIDTH); else (blocks, rows, STEPS) */
    real *output;  /* (tiles, columns, WIDTH); else (rows, columns) */
    bool packs;    /* W, for all rows of a wide task */
    operand *slab; /* a block of W brought into contiguous operands, or packed */
    real *rows;    /* (LANES, SLAB_COLUMNS) */
    real *sums;    /* row form: (rows, columns) of a block */
} linear_work;

static size_t
lay_out_linear(const attn_linear_problem *l, char *memory, linear_work *w)
{
    arena a = {memory, 0};
    ptrdiff_t n_rows =
        least(l->batch.n * l->n_rows, l->wide ? ATTN_WIDE_ROWS : ATTN_TASK_ROWS);
    ptrdiff_t n_tiles = tiles_of(n_rows);
    ptrdiff_t n_outputs = n_tiles * WIDTH * ATTN_LINEAR_COLUMNS;
    ptrdiff_t slab = STEPS * ATTN_LINEAR_COLUMNS;
    size_t block_size = (size_t)(STEPS * n_tiles * WIDTH) * sizeof(operand);
    size_t n_blocks = (size_t)(l->n_in + ATTN_BLOCK - 1) / ATTN_BLOCK;

    arena_take(&a, sizeof *w);
    w->form = attn_linear_in_rows(l) ? ROW_FORM : TILE_FORM;
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
                         (l->wide ? MAX_WIDE_WORKSPACE : MAX_WORKSPACE);
    w->input = arena_take(&a, w->keeps_input ? n_blocks * block_size : block_size);
    return a.used;
}

static size_t
linear_workspace_size(const attn_linear_problem *l)
{
    linear_work w;
    return lay_out_linear(l, NULL, &w);
}

/* The block of the task's rows from element `first` on. */
static operand *
input_block(const linear_work *w, ptrdiff_t first)
{
    ptrdiff_t n_tiles = tiles_of(w->task->n_rows);
    return w->input +
           (w->keeps_input ? first / ATTN_BLOCK * STEPS * n_tiles * WIDTH : 0);
}

/* The address of row r of the task in an array of all batches' rows. */
static char *
linear_row(const linear_work *w, const attn_array *array, ptrdiff_t r)
{
    ptrdiff_t row = w->task->first_row + r, n_rows = w->l->n_rows;
    return attn_address(array, &w->l->batch, row / n_rows, 0, row % n_rows);
}

/* Rows that row form computes for n_rows, ATTN_FEW_ROWS at a time. */
static ptrdiff_t
linear_row_form_rows(ptrdiff_t n_rows)
{
    ptrdiff_t whole = (n_rows - 1) / ATTN_FEW_ROWS * ATTN_FEW_ROWS;
    return whole + row_form_rows(n_rows - whole);
}

/* Columns of a row of outputs in memory, those that whole vectors or panels lack too. */
static ptrdiff_t
row_width(const linear_work *w)
{
    return round_up(w->task->n_columns, w->unit);
}

/* The bias of a column of the task. */
static real
column_bias(const linear_work *w, ptrdiff_t column)
{
    const attn_array *bias = &w->l->bias;
    ptrdiff_t at = (w->task->first_column + column) * bias->column_stride;
    return bias->data == NULL ? 0 : load_element(bias->data + at, REAL_DTYPE);
}

#endif
