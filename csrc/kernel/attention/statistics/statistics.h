/* Statistics of weights, a block of keys at a time; core/statistics.h says what is summed in
 * which order. Rows are lanes: sums over keys go lane by lane, and sums over rows, what each
 * key receives, go across lanes for many keys at a time. */
#ifndef ATTN_KERNEL_ATTENTION_STATISTICS_STATISTICS_H
#define ATTN_KERNEL_ATTENTION_STATISTICS_STATISTICS_H

#include "kernel/attention/statistics/top.h"
#include "kernel/math/log.h"

/* The sum of n vectors, a power of two: those of the second half are added to those of the
 * first, until one is left. */
static INLINE v_real
fold(v_real *x, int n)
{
    for (n /= 2; n > 0; n /= 2) {
        for (int i = 0; i < n; i++) {
            x[i] = v_add(x[i], x[i + n]);
        }
    }
    return x[0];
}

/* Folds a key's weights of all rows that a task may have, down to a vector. */
static INLINE v_real
fold_rows(const work *w, const span *spans, ptrdiff_t key)
{
    enum { N = ATTN_TASK_ROWS / LANES };
    v_real rows[N];

    for (int i = 0; i < N; i++) {
        int t = i / TILE_VECTORS, v = i % TILE_VECTORS;
        rows[i] = v_set1(0);
        if (t < w->rows.n_tiles && v < tile_vectors(&w->rows, t) &&
            key >= spans[t].first && key < spans[t].first + spans[t].n) {
            ptrdiff_t k = key - spans[t].first;
            rows[i] = v_load(scores_of(w, t) + k * WIDTH + v * LANES);
        }
    }
    return fold(rows, N);
}

/* received[key] = what the task's rows give to each key of a block. */
static void
sum_over_rows(const work *w, const block *b, const span *spans)
{
    real *received = (real *)w->rows.task->statistics->received + b->first;

    for (ptrdiff_t k = b->first; k < b->end; k += LANES) {
        v_real keys[LANES];
        for (int i = 0; i < LANES; i++) {
            keys[i] = fold_rows(w, spans, k + i);
        }
        v_transpose(keys);
        v_store(received + k - b->first, fold(keys, LANES));
    }
}

static void
clear_statistics(work *w)
{
    const attn_task *task = w->rows.task;
    row_statistics *so_far = w->statistics;

    memset(so_far->log_sums, 0, sizeof so_far->log_sums);
    memset(so_far->distances, 0, sizeof so_far->distances);
    for (ptrdiff_t r = 0; r < ATTN_TASK_ROWS; r++) {
        ptrdiff_t query = (task->first_row + r) % task->n_queries;
        so_far->positions[r] = (double)task->q_offset + (double)query;
    }
    if (task->statistics->top_keys != NULL) {
        clear_top(w);
    }
}

/* Adds the block's sums of a vector of rows to theirs. */
static void
add_sums(v_real sums, double *to)
{
    real lanes[LANES];

    v_store(lanes, sums);
    for (int i = 0; i < LANES; i++) {
        to[i] += (double)lanes[i];
    }
}

static v_real
sum_logs(const real *weights, ptrdiff_t n_keys)
{
    v_real sum = v_set1(0);

    for (ptrdiff_t k = 0; k < n_keys; k++) {
        v_real x = v_load(weights + k * WIDTH);
        v_real term = v_mul(x, log_lanes(x));
        sum = v_add(sum, v_select(v_less(x, v_set1(REAL_MIN)), v_set1(0), term));
    }
    return sum;
}

/* The weights times how far their keys are; `first` keys of the block come before. */
static v_real
sum_distances(const work *w, const block *b, ptrdiff_t first, ptrdiff_t r,
              const real *weights, ptrdiff_t n_keys)
{
    v_real sum = v_set1(0);
    real position[LANES]; /* relative to the block's first key */

    for (int i = 0; i < LANES; i++) {
        position[i] = (real)(w->statistics->positions[r + i] - (double)b->first);
    }
    for (ptrdiff_t k = 0; k < n_keys; k++) {
        v_real away = v_sub(v_load(position), v_set1((real)(first + k)));
        away = v_max(away, v_sub(v_set1(0), away));
        sum = v_add(sum, v_mul(v_load(weights + k * WIDTH), away));
    }
    return sum;
}

/* Takes up a span's weights of the vector of rows from r on. Lanes beyond the task's rows
 * become 0. */
static void
measure_lanes(work *w, const block *b, const span *s, ptrdiff_t r, real *weights)
{
    const attn_task_statistics *wanted = w->rows.task->statistics;
    ptrdiff_t n_rows = w->rows.task->n_rows - r;

    for (ptrdiff_t k = 0; k < s->n && n_rows < LANES; k++) {
        v_mask rows = v_mask_of(bits_between(0, n_rows));
        v_real x = v_load(weights + k * WIDTH);
        v_store(weights + k * WIDTH, v_select(rows, x, v_set1(0)));
    }
    if (wanted->entropy != NULL) {
        add_sums(sum_logs(weights, s->n), w->statistics->log_sums + r);
    }
    if (wanted->distance != NULL) {
        ptrdiff_t first = s->first - b->first;
        add_sums(sum_distances(w, b, first, r, weights, s->n),
                 w->statistics->distances + r);
    }
    if (wanted->top_keys != NULL) {
        take_top(w, s, r, weights);
    }
}

/* Writes what was summed up of each row, once all keys are; NaN where its weights are. */
static void
write_statistics(const work *w)
{
    const attn_statistics *s = w->rows.p->statistics;
    const attn_task_statistics *to = w->rows.task->statistics;

    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        bool spoilt = w->total.sum[r] != w->total.sum[r];
        double entropy = spoilt ? (double)NAN : 0 - w->statistics->log_sums[r];
        double distance = spoilt ? (double)NAN : w->statistics->distances[r];
        write_statistic(w, to->entropy, &s->entropy, r, entropy);
        write_statistic(w, to->distance, &s->distance, r, distance);
        for (ptrdiff_t i = 0; i < s->top_k && spoilt && to->top_keys != NULL; i++) {
            write_statistic(w, to->top_weights + i * (ptrdiff_t)sizeof(real),
                            &s->top_weights, r, (double)NAN);
        }
    }
}

#endif
