/* Statistics of attention's weights, in memory for rows and for columns, never for all of
 * them. For the weights w[i][j] of one head, exactly those that attention has:
 *
 *     received[j]  the sum of w[i][j] over i: in blocks of 64 queries at 0, 64 ..., zeros
 *                  beyond the last, whose second half is added to the first until one row
 *                  is left; the blocks' sums are added in ascending order, in double
 *     entropy[i]   minus the sum of w log w over j, 0 where w is below the smallest normal
 *                  number; log is log_lanes of kernel/math/log.h
 *     distance[i]  the sum of w |position of query i - j| over j
 *     top          the largest weights above 0, the first of those alike first; then 0, -1
 *
 * A sum over j goes in blocks of 128 keys, from 0 in ascending order, each product rounded;
 * the blocks' sums are added in ascending order, in double, and rounded once. A row that has
 * a NaN has NaN for each, and the keys -1. */
#ifndef ATTN_CORE_STATISTICS_H
#define ATTN_CORE_STATISTICS_H

#include "core/attention.h"

/* Where to write those that are wanted, in the arithmetic's dtype. */
struct attn_statistics {
    attn_array received;    /* (B, H, Lk) zeroed, or none */
    attn_array entropy;     /* (B, H, Lq), or none */
    attn_array distance;    /* (B, H, Lq), or none */
    attn_array top_weights; /* (B, H, Lq, top_k) in one line, or none */
    attn_array top_keys;    /* (B, H, Lq, top_k) int64 in one line, or none */
    ptrdiff_t top_k;        /* at least 1 */
};

/* The addresses of a task's rows in these arrays. */
struct attn_task_statistics {
    char *entropy, *distance, *top_weights, *top_keys; /* or NULL */
    void *received; /* (Lk) reals for the sums over the task's rows, or NULL */
};

/* The driver: the output as well, and the LSE where it is wanted. -1 when memory runs out,
 * else 0. */
int attn_measure(const attn_problem *, const attn_statistics *, attn_call *);

/* As attn_attention_work. */
double attn_measure_work(const attn_problem *);

#endif
