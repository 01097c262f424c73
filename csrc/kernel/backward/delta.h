/* What scores' gradients are relative to, the rows' delta, and the gradients of sinks, which take
 * but LSE and delta. */
#ifndef ATTN_KERNEL_BACKWARD_DELTA_H
#define ATTN_KERNEL_BACKWARD_DELTA_H

#include "kernel/backward/tile.h"
#include "kernel/math.h"

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

/* The products of rows of output and its gradient, LANES rows from r of the tile on. */
static v_real
multiply_rows(backward_work *w, ptrdiff_t r)
{
    const attn_problem *p = &w->g->attention;
    const real *gradient = grad_lanes(w, r);
    real *output = w->weights; /* (DIM_BLOCK, WIDTH) */
    v_real total = v_set1(0);

    for (ptrdiff_t d = 0; d < p->value_dim; d += ATTN_DIM_BLOCK) {
        ptrdiff_t n = least(p->value_dim - d, ATTN_DIM_BLOCK);
        v_real sum = v_set1(0);
        load_tile_lanes(w, &p->output, r, d, n, output);
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

/* Leaves it for the gradients of sinks. */
static void
run_delta(const attn_backward_problem *g, ptrdiff_t b, ptrdiff_t kv_head,
          const attn_worker *worker)
{
    const attn_problem *p = &g->attention;
    backward_work *w = open_backward(g, worker);
    ptrdiff_t n_queries = attn_packed_length(p->query_starts, b, p->n_queries);

    w->b = b;
    w->kv_head = kv_head;
    for (ptrdiff_t t = 0; t < attn_backward_tiles(p, n_queries); t++) {
        choose_tile(w, t);
        load_grad_output(w);
        find_delta(w);
        for (ptrdiff_t r = 0; r < w->task.n_rows; r++) {
            ONE_BY_ONE;
            memcpy(query_row(w, &g->delta, r), w->delta + r, sizeof(real));
        }
    }
}

/* What n queries, at most 64, of one head add to the gradient of its sink. A sink of -inf
 * is none and gets nothing, and a row whose LSE is -inf has seen nothing and gives nothing:
 * -inf - -inf is NaN, and so is 0 times a delta of NaN. */
static real
sum_sink(const char *lse, ptrdiff_t lse_row, const char *delta, ptrdiff_t n, real sink)
{
    real sum = 0;

    for (ptrdiff_t i = 0; i < n; i++) {
        real numbers[2], weights[LANES];
        memcpy(numbers, lse + i * lse_row, sizeof(real));
        memcpy(numbers + 1, delta + i * (ptrdiff_t)sizeof(real), sizeof(real));
        if (sink < -REAL_MAX || numbers[0] < -REAL_MAX) {
            continue;
        }
        real x = sink - numbers[0];
        v_store(weights, exp_of(v_set1(x > 0 ? 0 : x)));
        sum -= weights[0] * numbers[1];
    }
    return sum;
}

static void
run_sink(const attn_backward_problem *g, ptrdiff_t head, const attn_worker *worker)
{
    const attn_problem *p = &g->attention;
    const char *at = p->sinks.data + head * p->sinks.head_stride;
    real sink = load_element(at, p->sinks.dtype), total = 0;

    (void)worker;
    for (ptrdiff_t b = 0; b < p->batch.n; b++) {
        ptrdiff_t n = attn_packed_length(p->query_starts, b, p->n_queries);
        ptrdiff_t start = attn_packed_start(p->query_starts, b);
        for (ptrdiff_t i = 0; i < n; i += ATTN_TASK_ROWS) {
            total += sum_sink(attn_address(&p->lse, &p->batch, b, head, start + i),
                              p->lse.row_stride,
                              attn_address(&g->delta, &p->batch, b, head, start + i),
                              least(n - i, ATTN_TASK_ROWS), sink);
        }
    }
    total = one_nan_or(total);
    memcpy(g->grad_sinks.data + head * g->grad_sinks.head_stride, &total, sizeof total);
}

#endif
