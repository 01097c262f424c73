/* Statistics of weights: what each key receives. Rows are lanes of a tile, so that sums over
 * them go across lanes, many keys at a time. */
#ifndef ATTN_KERNEL_ATTENTION_MEASURE_KEYS_H
#define ATTN_KERNEL_ATTENTION_MEASURE_KEYS_H

#include "kernel/attention/tile_scores.h"

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
        if (t < w->n_tiles && v < tile_vectors(w, t) && key >= spans[t].first &&
            key < spans[t].first + spans[t].n) {
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
    real *received = (real *)w->task->received + b->first;

    for (ptrdiff_t k = b->first; k < b->end; k += LANES) {
        v_real keys[LANES];
        for (int i = 0; i < LANES; i++) {
            keys[i] = fold_rows(w, spans, k + i);
        }
        v_transpose(keys);
        v_store(received + k - b->first, fold(keys, LANES));
    }
}

#endif
