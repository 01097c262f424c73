/* The work of a linear task on a matrix unit, and the rows of x that it multiplies: bfloat16
 * numbers in whole tiles. */
#ifndef ATTN_KERNEL_AMX_LINEAR_TASK_H
#define ATTN_KERNEL_AMX_LINEAR_TASK_H

#include "kernel/linear/task.h"

enum {
    SEGMENT = 1024, /* elements of x that are kept, if there is no room for all */
    UNIT_SUMS = 2 * UNIT_ROWS * ATTN_PANEL_COLUMNS, /* of two rows of tiles */
    UNIT_SLAB = 128 << 10 /* more than what a task keeps besides its rows */
};

_Static_assert(UNIT_COLUMNS *UNIT_LANES == ATTN_PANEL_COLUMNS, "tiles of a panel");
_Static_assert(ATTN_BLOCK % UNIT_TERMS == 0 && SEGMENT % ATTN_BLOCK == 0,
               "whole tiles");

typedef struct {
    linear_work linear; /* with outputs (rows, columns), unless sums stay in tiles */
    ptrdiff_t x_row;    /* bytes from row to row of x */
    ptrdiff_t segment;  /* elements of x that are multiplied at a time: */
    bool whole;         /* all of them, so that sums stay in tiles to the end */
    char *x;            /* (rows, x_row): numbers of bfloat16 */
    operand *tail; /* the last rows of W, and 0: (UNIT_TERMS / 2, ATTN_PANEL_COLUMNS) */
    real *sums;    /* of tiles, in two turns: (2, 2 * UNIT_ROWS, ATTN_PANEL_COLUMNS) */
} matrix_work;

/* Bytes from row to row of n elements of x: an odd number of lines, so that rows are not at the
 * same places of a cache. */
static ptrdiff_t
unit_row_of(ptrdiff_t n)
{
    return (round_up(n, UNIT_TERMS) / UNIT_TERMS | 1) * UNIT_TERMS *
           (ptrdiff_t)sizeof(uint16_t);
}

/* The most rows of a task. More rows read W less often, but their memory has to fit in the
 * second-level cache. */
static ptrdiff_t
unit_many_rows(const attn_linear_problem *l)
{
    ptrdiff_t row =
        unit_row_of(l->n_in) + ATTN_LINEAR_COLUMNS * (ptrdiff_t)sizeof(real);
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
    ptrdiff_t limit = l->many_rows ? MAX_MANY_ROWS_WORKSPACE : MAX_WORKSPACE;

    arena_take(&a, sizeof *m);
    w->row_multiple = ATTN_PANEL_COLUMNS;
    w->rows = arena_reals(&a, LANES * SLAB_COLUMNS);
    m->sums = arena_reals(&a, 2 * UNIT_SUMS);
    w->slab =
        arena_take(&a, ATTN_BLOCK / TERMS * ATTN_LINEAR_COLUMNS * sizeof(operand));
    m->tail = arena_take(&a, UNIT_TERMS / TERMS * ATTN_PANEL_COLUMNS * sizeof(operand));
    w->keeps_input = (ptrdiff_t)a.used + n_rows * unit_row_of(l->n_in) +
                         n_rows * ATTN_LINEAR_COLUMNS * (ptrdiff_t)sizeof(real) <=
                     limit;
    m->whole = w->keeps_input && l->packed;
    m->segment = m->whole ? most(l->n_in, 1) : l->packed ? SEGMENT : ATTN_BLOCK;
    m->x_row = unit_row_of(w->keeps_input ? l->n_in : m->segment);
    w->output = m->whole ? NULL : arena_reals(&a, n_rows * ATTN_LINEAR_COLUMNS);
    m->x = arena_take(&a, (size_t)(n_rows * m->x_row));
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

/* Row r of x, from element `first` on. */
static char *
unit_x(const matrix_work *m, ptrdiff_t r, ptrdiff_t first)
{
    return m->x + r * m->x_row +
           (m->linear.keeps_input ? first * (ptrdiff_t)sizeof(uint16_t) : 0);
}

/* Loads elements first .. first + n - 1 of each row, and zeros where tiles have more. */
static void
load_x(const matrix_work *m, ptrdiff_t first, ptrdiff_t n)
{
    const linear_work *w = &m->linear;
    const attn_array *input = &w->l->input;
    ptrdiff_t n_rows = round_up(w->task->n_rows, unit_rows(m));
    ptrdiff_t n_bytes = round_up(n, UNIT_TERMS) * (ptrdiff_t)sizeof(uint16_t);

    for (ptrdiff_t r = 0; r < n_rows; r++) {
        char *to = unit_x(m, r, first);
        ptrdiff_t used = r < w->task->n_rows ? n * (ptrdiff_t)sizeof(uint16_t) : 0;
        if (used > 0) {
            stage_row((operand *)(void *)to,
                      linear_row(w, input, r) + first * input->column_stride,
                      input->column_stride, n, input->dtype);
        }
        memset(to + used, 0, (size_t)(n_bytes - used));
    }
}

/* The bytes of a step's lines that products of rows r .. prefetch: their share of all rows'. */
typedef struct {
    ptrdiff_t first, end;
} step_share;

enum { SHARE_UNIT = 4 * CACHE_LINE }; /* a loop so short that its end is predicted */

static step_share
share_of(const matrix_work *m, ptrdiff_t r)
{
    enum { N = UNIT_TERMS / TERMS * ATTN_PANEL_COLUMNS * sizeof(operand) / SHARE_UNIT };
    ptrdiff_t n_rows = most(m->linear.task->n_rows, 1);
    ptrdiff_t end = least(r + 2 * UNIT_ROWS, n_rows);

    if (!m->linear.l->packed) {
        return (step_share){0, 0}; /* packing has prefetched them */
    }
    return (step_share){r * N / n_rows * SHARE_UNIT, end * N / n_rows * SHARE_UNIT};
}

static INLINE void
prefetch_share(step_share share, const char *at, const bool near)
{
    for (ptrdiff_t i = share.first; i < share.end; i += SHARE_UNIT) {
        UNROLLED for (ptrdiff_t line = i; line < i + SHARE_UNIT; line += CACHE_LINE)
        {
            if (near) { /* clang takes constants alone */
                __builtin_prefetch(at + line, 0, 3);
            } else {
                __builtin_prefetch(at + line, 0, 2);
            }
        }
    }
}

#endif
