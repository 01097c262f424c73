/* The gradients of sinks, from LSE and delta alone. */
#ifndef ATTN_KERNEL_BACKWARD_SINKS_H
#define ATTN_KERNEL_BACKWARD_SINKS_H

#include "kernel/backward/delta.h"

/* Stores the delta of every row. */
static void
run_delta(const attn_backward_problem *g, ptrdiff_t b, ptrdiff_t kv_head,
          const attn_worker *worker)
{
    const attn_problem *p = &g->attention;
    backward_work *w = open_backward(g, worker);
    ptrdiff_t n_queries = attn_n_queries(p, b);

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

/* What n queries, at most 64, of one head add to the gradient of its sink. A sink of
 * -inf gets nothing, and a row whose LSE is -inf gives nothing: -inf - -inf would be
 * NaN, and so would 0 times a delta of NaN. */
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
        ptrdiff_t n = attn_n_queries(p, b);
        ptrdiff_t start = attn_first_query(p, b);
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
