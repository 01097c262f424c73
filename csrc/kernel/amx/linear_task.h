/* The work of a linear task on a matrix unit, and the rows of x that it multiplies: bfloat16
 * numbers in whole tiles. */
#ifndef ATTN_KERNEL_AMX_LINEAR_TASK_H
#define ATTN_KERNEL_AMX_LINEAR_TASK_H

#include "kernel/linear/task.h"

enum {
    SEGMENT = 1024, /* elements of x for which sums stay in tiles */
    X_ROW = 2 * SEGMENT +
        64,               /* bytes from row to row: not at the same places of a cache */
    UNIT_SLAB = 128 << 10 /* more than what a task keeps besides its rows */
};

_Static_assert(UNIT_COLUMNS *UNIT_LANES == ATTN_PANEL_COLUMNS, "tiles of a panel");
_Static_assert(ATTN_BLOCK % UNIT_TERMS == 0 && SEGMENT % ATTN_BLOCK == 0,
               "whole tiles");

typedef struct {
    linear_work linear; /* with outputs (rows, columns) */
    char *x;            /* (segments if kept, rows, X_ROW): numbers of bfloat16 */
    operand *tail; /* the last rows of W, and 0: (UNIT_TERMS / 2, ATTN_PANEL_COLUMNS) */
} matrix_work;

/* The most rows of a task. More rows read W less often, but their memory has to fit in the
 * second-level cache. */
static ptrdiff_t
unit_many_rows(const attn_linear_problem *l)
{
    ptrdiff_t n_segments =
        l->n_out > ATTN_LINEAR_COLUMNS ? (l->n_in + SEGMENT - 1) / SEGMENT : 1;
    ptrdiff_t row = n_segments * X_ROW + ATTN_LINEAR_COLUMNS * (ptrdiff_t)sizeof(real);
    ptrdiff_t n_rows = ATTN_MANY_ROWS;

    while (n_rows > ATTN_TASK_ROWS &&
           n_rows * row > MAX_MANY_ROWS_WORKSPACE - UNIT_SLAB) {
        n_rows /= 2;
    }
    return n_rows;
}

static size_t
lay_out_matrix(const attn_linear_problem *l, char *memory, matrix_work *m)
{
    arena a = {memory, 0};
    linear_work *w = &m->linear;
    ptrdiff_t n_rows =
        round_up(least(l->batch.n * l->n_rows,
                       l->many_rows ? unit_many_rows(l) : ATTN_TASK_ROWS),
                 UNIT_ROWS);
    size_t n_segments = (size_t)(l->n_in + SEGMENT - 1) / SEGMENT;
    size_t segment = (size_t)(n_rows * X_ROW);

    arena_take(&a, sizeof *m);
    w->unit = ATTN_PANEL_COLUMNS;
    w->rows = arena_reals(&a, LANES * SLAB_COLUMNS);
    w->output = arena_reals(&a, n_rows * ATTN_LINEAR_COLUMNS);
    w->slab =
        arena_take(&a, ATTN_BLOCK / TERMS * ATTN_LINEAR_COLUMNS * sizeof(operand));
    m->tail = arena_take(&a, UNIT_TERMS / TERMS * ATTN_PANEL_COLUMNS * sizeof(operand));
    w->keeps_input = a.used + n_segments * segment <=
                     (l->many_rows ? MAX_MANY_ROWS_WORKSPACE : MAX_WORKSPACE);
    m->x = arena_take(&a, w->keeps_input ? n_segments * segment : segment);
    return a.used;
}

static size_t
matrix_workspace_size(const attn_linear_problem *l)
{
    matrix_work m;
    return lay_out_matrix(l, NULL, &m);
}

/* Rows of a tile of x: few rows are not filled up to UNIT_ROWS. */
static int
unit_rows(const matrix_work *m)
{
    return (int)least(m->linear.task->n_rows, UNIT_ROWS);
}

/* The segment of x from element `first` on. */
static char *
x_segment(const matrix_work *m, ptrdiff_t first)
{
    ptrdiff_t n_rows = round_up(m->linear.task->n_rows, UNIT_ROWS);
    return m->x + (m->linear.keeps_input
                       ? first / SEGMENT * n_rows * X_ROW + first % SEGMENT * 2
                       : 0);
}

/* Loads elements first .. first + n - 1 of each row, and zeros where tiles have more. */
static void
load_x(const matrix_work *m, ptrdiff_t first, ptrdiff_t n)
{
    const linear_work *w = &m->linear;
    const attn_array *input = &w->l->input;
    ptrdiff_t n_rows = round_up(w->task->n_rows, unit_rows(m));
    ptrdiff_t n_bytes = round_up(n, UNIT_TERMS) * (ptrdiff_t)sizeof(uint16_t);
    char *to = x_segment(m, first);

    for (ptrdiff_t r = 0; r < n_rows; r++, to += X_ROW) {
        ptrdiff_t used = r < w->task->n_rows ? n * (ptrdiff_t)sizeof(uint16_t) : 0;
        if (used > 0) {
            stage_row((operand *)(void *)to,
                      linear_row(w, input, r) + first * input->column_stride,
                      input->column_stride, n, input->dtype);
        }
        memset(to + used, 0, (size_t)(n_bytes - used));
    }
}

#endif
