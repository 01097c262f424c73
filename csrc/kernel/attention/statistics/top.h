/* Statistics of weights: the largest of each row, kept in order in the results. */
#ifndef ATTN_KERNEL_ATTENTION_STATISTICS_TOP_H
#define ATTN_KERNEL_ATTENTION_STATISTICS_TOP_H

#include "core/statistics.h"
#include "kernel/attention/tile_form/scores.h"

/* Where an array has the statistics of row r. */
static void *
statistic_at(const work *w, char *base, const attn_array *array, ptrdiff_t r)
{
    return base + row_offset(&w->rows, array, r);
}

static ONE_COPY void
write_statistic(const work *w, char *base, const attn_array *array, ptrdiff_t r,
                double x)
{
    if (base != NULL) {
        *(real *)statistic_at(w, base, array, r) = (real)x;
    }
}

/* No weights and no keys yet. */
static void
clear_top(work *w)
{
    const attn_statistics *s = w->rows.p->statistics;
    const attn_task_statistics *to = w->rows.task->statistics;
    size_t n = (size_t)s->top_k;

    memset(w->statistics->least_top, 0, sizeof w->statistics->least_top);
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        memset(statistic_at(w, to->top_weights, &s->top_weights, r), 0,
               n * sizeof(real));
        memset(statistic_at(w, to->top_keys, &s->top_keys, r), 0xff, /* -1 */
               n * sizeof(int64_t));
    }
}

/* Puts a weight into its place among a row's largest ones, behind those alike. */
static void
insert_top(work *w, ptrdiff_t r, real weight, ptrdiff_t key)
{
    const attn_statistics *s = w->rows.p->statistics;
    const attn_task_statistics *to = w->rows.task->statistics;
    real *weights = statistic_at(w, to->top_weights, &s->top_weights, r);
    int64_t *keys = statistic_at(w, to->top_keys, &s->top_keys, r);
    ptrdiff_t i = s->top_k - 1;

    for (; i > 0 && weights[i - 1] < weight; i--) {
        weights[i] = weights[i - 1];
        keys[i] = keys[i - 1];
    }
    weights[i] = weight;
    keys[i] = key;
    w->statistics->least_top[r] = weights[s->top_k - 1];
}

/* Takes up a span's weights of the vector of rows from r on. */
static void
take_top(work *w, const span *s, ptrdiff_t r, const real *weights)
{
    for (ptrdiff_t k = 0; k < s->n; k++) {
        v_real below = v_load(w->statistics->least_top + r);
        v_mask larger = v_less(below, v_load(weights + k * WIDTH));
        for (uint64_t bits = v_bits_of(larger); bits != 0; bits &= bits - 1) {
            ptrdiff_t i = __builtin_ctzll(bits);
            insert_top(w, r + i, weights[k * WIDTH + i], s->first + k);
        }
    }
}

#endif
