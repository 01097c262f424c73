/* Normalization backwards. With y = (x - mean) * scale and g = grad_output * weight, the
 * gradient of x is scale * (g - mean(g) - y * mean(g y)), without mean(g) if rows are not
 * centred; those of weight and bias are the sums of grad_output * y and of grad_output. */
#ifndef ATTN_KERNEL_ROWS_NORM_VJP_H
#define ATTN_KERNEL_ROWS_NORM_VJP_H

#include "kernel/arena.h"
#include "kernel/rows/moments.h"

/* A block's work. Rows are `width` long, n_columns and then 0. */
typedef struct {
    const attn_norm_vjp_problem *g;
    ptrdiff_t width;    /* whole chains */
    const real *weight; /* a row */
    real *weight_sums;  /* a row */
    real *bias_sums;    /* a row, or NULL */
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

/* The row, if n_columns is the width, else a copy that is filled up with 0. */
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

/* Stores y in `to`, and adds the row's part to the sums. Returns the mean of g if rows are
 * centred, else 0; and that of g y. */
static real
sum_row_products(const norm_vjp_work *w, const real *x, const real *grad, real mean,
                 real scale, real *to, real *product_mean)
{
    v_real sum[CHAIN_VECTORS], products[CHAIN_VECTORS];
    real size = (real)w->g->norm.n_columns;

    UNROLLED for (int j = 0; j < CHAIN_VECTORS; j++)
    {
        sum[j] = products[j] = v_set1(0);
    }
    for (ptrdiff_t k = 0; k < w->width; k += CHAINS) {
        UNROLLED for (int j = 0; j < CHAIN_VECTORS; j++)
        {
            ptrdiff_t at = k + j * LANES;
            v_real y = v_mul(v_sub(v_load(x + at), v_set1(mean)), v_set1(scale));
            v_real d = v_load(grad + at), g = v_mul(d, v_load(w->weight + at));
            v_store(to + at, y);
            sum[j] = v_add(sum[j], g);
            products[j] = v_fma(g, y, products[j]);
            v_store(w->weight_sums + at, v_fma(d, y, v_load(w->weight_sums + at)));
            if (w->bias_sums != NULL) {
                v_store(w->bias_sums + at, v_add(v_load(w->bias_sums + at), d));
            }
        }
    }
    *product_mean = sum_chains(products) / size;
    return w->g->norm.centre ? sum_chains(sum) / size : 0;
}

static void
normalize_row_vjp(const norm_vjp_work *w, ptrdiff_t r)
{
    ptrdiff_t n = w->g->norm.n_columns;
    const real *x = (const real *)w->g->norm.input + r * n;
    const real *grad = (const real *)w->g->grad_output + r * n;
    real *output = (real *)w->g->grad_input + r * n;
    real *to = n == w->width ? output : w->spare[3];
    real mean, scale, product_mean;

    const real *moments = w->g->norm.moments;
    if (moments == NULL) {
        measure_row(&w->g->norm, x, &mean, &scale);
    } else {
        mean = moments[r];
        scale = moments[w->g->norm.n_rows + r];
    }
    x = whole_row(w, x, w->spare[1]);
    grad = whole_row(w, grad, w->spare[2]);
    real sum_mean = sum_row_products(w, x, grad, mean, scale, to, &product_mean);
    for (ptrdiff_t k = 0; k < w->width; k += LANES) {
        v_real g = v_mul(v_load(grad + k), v_load(w->weight + k));
        g = v_sub(g, v_set1(sum_mean));
        g = v_fma(v_load(to + k), v_set1(-product_mean), g);
        v_store(to + k, v_mul(g, v_set1(scale)));
    }
    if (to != output) {
        memcpy(output, to, (size_t)n * sizeof(real));
    }
}

static void
normalize_vjp(const attn_norm_vjp_problem *g, ptrdiff_t index, void *workspace)
{
    ptrdiff_t first = index * ATTN_TASK_ROWS;
    ptrdiff_t end = least(g->norm.n_rows, first + ATTN_TASK_ROWS);
    norm_vjp_work w;

    (void)lay_out_norm_vjp(g, workspace, &w);
    w.weight = whole_row(&w, g->norm.weight, w.spare[0]);
    w.weight_sums = (real *)g->sums + 2 * index * w.width;
    w.bias_sums = g->grad_bias == NULL ? NULL : w.weight_sums + w.width;
    memset(w.weight_sums, 0, 2 * (size_t)w.width * sizeof(real));
    for (ptrdiff_t r = first; r < end; r++) {
        normalize_row_vjp(&w, r);
    }
}

static void
add_norm_blocks(const attn_norm_vjp_problem *g, ptrdiff_t first_column, ptrdiff_t n)
{
    ptrdiff_t width = round_up(g->norm.n_columns, CHAINS);

    for (int which = 0; which < 2; which++) { /* weight, bias */
        real *to = which == 0 ? g->grad_weight : g->grad_bias;
        const real *sums = (const real *)g->sums + which * width + first_column;
        if (to == NULL) {
            return;
        }
        to += first_column;
        memset(to, 0, (size_t)n * sizeof(real));
        for (ptrdiff_t b = 0; b < attn_norm_blocks(&g->norm); b++, sums += 2 * width) {
            for (ptrdiff_t k = 0; k < n; k++) {
                to[k] += sums[k];
            }
        }
    }
}

#endif
