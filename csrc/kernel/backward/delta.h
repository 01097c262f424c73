/* The rows' delta, output times its gradient, which the gradient of a softmax
 * subtracts. */
#ifndef ATTN_KERNEL_BACKWARD_DELTA_H
#define ATTN_KERNEL_BACKWARD_DELTA_H

#include "kernel/backward/tile.h"
#include "kernel/math/exp.h"

/* The gradient where the output is not 0. An output of 0 adds nothing, NaN times 0 neither:
 * a row without keys has one, and its LSE, which is the sink, does not depend on it. */
static v_real
where_not_zero(v_real output, v_real gradient)
{
    v_real zero = v_set1(0);
    v_real other = v_select(v_is_nan(output), gradient, zero);

    other = v_select(v_less(output, zero), gradient, other);
    return v_select(v_less(zero, output), gradient, other);
}

/* Columns d .. d + n - 1 of the output's gradient as reals, LANES rows from r of the tile on. */
static const real *
real_grad_lanes(backward_work *w, ptrdiff_t r, ptrdiff_t d, ptrdiff_t n)
{
    if (TERMS == 1) {
        return (const real *)grad_lanes(w, r) + d * WIDTH;
    }
    load_real_lanes(w, &w->g->grad_output, r, d, n, w->grad_weights);
    return w->grad_weights;
}

/* The products of rows of output and its gradient, LANES rows from r of the tile on. */
static v_real
multiply_rows(backward_work *w, ptrdiff_t r)
{
    const attn_problem *p = &w->g->attention;
    real *output = w->scores; /* (DIM_BLOCK, WIDTH) */
    v_real total = v_set1(0);

    for (ptrdiff_t d = 0; d < p->value_dim; d += ATTN_DIM_BLOCK) {
        ptrdiff_t n = least(p->value_dim - d, ATTN_DIM_BLOCK);
        v_real sum = v_set1(0);
        const real *gradient = real_grad_lanes(w, r, d, n);
        load_real_lanes(w, &p->output, r, d, n, output);
        for (ptrdiff_t k = 0; k < n; k++, gradient += WIDTH) {
            v_real o = v_load(output + k * WIDTH);
            sum = v_fma(o, where_not_zero(o, v_load(gradient)), sum);
        }
        total = v_add(total, sum);
    }
    return total;
}

/* The delta of the tile's rows, whose gradients of the output are in the lanes. */
static void
find_delta(backward_work *w)
{
    load_numbers(w, &w->g->grad_lse, w->delta);
    for (ptrdiff_t r = 0; r < w->task.n_rows; r += LANES) {
        v_store(w->delta + r, v_sub(multiply_rows(w, r), v_load(w->delta + r)));
    }
}

/* Loads what the products need of the tile's rows, once, and only if a block is
 * visible. */
static void
load_tile(backward_work *w)
{
    if (!w->is_loaded) {
        load_queries(&w->rows);
        load_grad_output(w);
        find_delta(w);
        w->is_loaded = true;
    }
}

#endif
