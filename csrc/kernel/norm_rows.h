/* A block of rows that a norm's gradients are computed for, and the memory for it. */
#ifndef ATTN_KERNEL_NORM_ROWS_H
#define ATTN_KERNEL_NORM_ROWS_H

#include "kernel/arena.h"
#include "kernel/moments.h"

/* A block's work. Rows are `width` long, n_columns and then 0. */
typedef struct {
    const attn_norm_vjp_problem *g;
    ptrdiff_t width;    /* whole chains */
    const real *weight; /* a row */
    real *weight_sums;  /* a row; so is */
    real *bias_sums;    /* that of the bias, or NULL */
    real *spare[4];     /* rows for weight, x, grad_output and gradient */
} norm_vjp_work;

static size_t
lay_out_norm_vjp(const attn_norm_vjp_problem *g, char *memory, norm_vjp_work *w)
{
    arena a = {memory, 0};

    w->g = g;
    w->width = round_up(g->norm.n_columns, CHAINS);
    for (int i = 0; i < 4; i++) {
        ONE_BY_ONE;
        w->spare[i] = arena_reals(&a, w->width);
    }
    return a.used;
}

static size_t
vjp_workspace_size(const attn_norm_vjp_problem *g)
{
    norm_vjp_work w;
    return lay_out_norm_vjp(g, NULL, &w);
}

/* A row of the columns' width: itself if it is that, else a copy. */
static const real *
whole_row(const norm_vjp_work *w, const real *row, real *spare)
{
    ptrdiff_t n = w->g->norm.n_columns;

    if (n == w->width) {
        return row;
    }
    memcpy(spare, row, (size_t)n * sizeof(real));
    memset(spare + n, 0, (size_t)(w->width - n) * sizeof(real));
    return spare;
}

#endif
