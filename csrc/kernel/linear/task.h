/* A linear task's work, and where its rows and panels are in arrays. */
#ifndef ATTN_KERNEL_LINEAR_TASK_H
#define ATTN_KERNEL_LINEAR_TASK_H

#include "core/linear.h"
#include "kernel/arena.h"
#include "kernel/operands/convert.h"
#include "kernel/operands/operand.h"

enum {
    STEPS = ATTN_BLOCK / TERMS,        /* of a chain */
    MAX_WORKSPACE = 1 << 20,           /* bytes, where there is a choice, */
    MAX_MANY_ROWS_WORKSPACE = 3 << 19, /* and for a task of many rows */
    ROW_GROUP = 8,    /* rows of W that row form takes at a time, 4 KB apart */
    LINE_TERMS = 2048 /* or elements of its columns, where these are lines */
};

_Static_assert(ATTN_LINEAR_COLUMNS % ATTN_PANEL_COLUMNS == 0, "whole panels");

/* Tile form: rows of x are lanes. Row form, for few rows, and a form for many: columns
 * of W are. */
typedef enum { TILE_FORM, ROW_FORM, MANY_ROWS_FORM } linear_form;

typedef struct {
    const attn_linear_problem *l;
    const attn_linear_task *task;
    linear_form form;
    ptrdiff_t row_multiple; /* columns of a row of `output` are a multiple of it */
    bool keeps_input;       /* of all blocks, for other columns of the task */
    ptrdiff_t n_steps;      /* that are taken at a time: STEPS or more */
    operand *
        input; /* (blocks if kept, tiles, STEPS, WIDTH); else (blocks, rows, n_steps) */
    real *output;  /* (tiles, columns, WIDTH); else (rows, columns) */
    bool packs;    /* W, for a task of many rows */
    operand *slab; /* a block of W brought into contiguous operands, or packed */
    real *rows;    /* (LANES, SLAB_COLUMNS) */
    real *sums;    /* row form: (rows, columns) of a block */
} linear_work;

/* The address of row r of the task in an array of all batches' rows. */
static char *
linear_row(const linear_work *w, const attn_array *array, ptrdiff_t r)
{
    ptrdiff_t row = w->task->first_row + r, n_rows = w->l->n_rows;
    return attn_address(array, &w->l->batch, row / n_rows, 0, row % n_rows);
}

/* Is the distance between an array's rows the same everywhere, across batches too? */
static bool
has_even_rows(const attn_linear_problem *l, const attn_array *array)
{
    return l->batch.n == 1 || array->batch_stride[0] == l->n_rows * array->row_stride;
}

/* Columns of a row of outputs in memory: whole vectors or panels. */
static ptrdiff_t
row_width(const linear_work *w)
{
    return round_up(w->task->n_columns, w->row_multiple);
}

/* The address of row `first` of W, at the task's first column. */
static const char *
weight_at(const linear_work *w, ptrdiff_t first)
{
    const attn_array *weight = &w->l->weight;
    return weight->data + first * weight->row_stride +
           w->task->first_column * weight->column_stride;
}

/* The address of row `first`, which begins a block, in the panel that begins at a column of the
 * task. */
static const char *
panel_at(const linear_work *w, ptrdiff_t first, ptrdiff_t column)
{
    const attn_linear_problem *l = w->l;
    ptrdiff_t terms = attn_packed_terms(l->weight.dtype);
    ptrdiff_t n_rows = least(l->n_in - first, ATTN_BLOCK);
    ptrdiff_t panel = (w->task->first_column + column) / ATTN_PANEL_COLUMNS;
    ptrdiff_t n_panels = (l->n_out + ATTN_PANEL_COLUMNS - 1) / ATTN_PANEL_COLUMNS;
    ptrdiff_t row = first / terms * n_panels + panel * ((n_rows + terms - 1) / terms);

    return l->weight.data + row * l->weight.row_stride;
}

#endif
