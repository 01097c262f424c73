/* The running softmax: maxima, exponentials and their sums. */
#ifndef ATTN_KERNEL_ATTENTION_SOFTMAX_H
#define ATTN_KERNEL_ATTENTION_SOFTMAX_H

#include "kernel/math.h"

/* The maximum that exponents are taken relative to: never -inf, which has no differences. */
static INLINE v_real
finite_floor(v_real max)
{
    return v_max(max, v_set1(-REAL_MAX));
}

/* Raises the running maxima of a vector of rows to at least `top`; sum and output so far
 * are to be multiplied by the result. */
static INLINE v_real
raise_max(real *max, v_real top)
{
    v_real before = v_load(max);
    v_real after = v_max(top, before);

    v_store(max, after);
    return exp_of(v_sub(before, finite_floor(after)));
}

/* Turns the scores of n_vec vectors of rows, times scale, into exponentials relative to
 * the running maximum, and adds them to the running sum. */
static INLINE void
exponentiate_lanes(real *scores, ptrdiff_t n_keys, real scale, real *max, real *sum,
                   real *rescale, const int n_vec)
{
    v_real top[TILE_VECTORS], total[TILE_VECTORS];

    for (int v = 0; v < n_vec; v++) {
        top[v] = v_set1((real)-INFINITY);
    }
    for (ptrdiff_t k = 0; k < n_keys; k++) {
        for (int v = 0; v < n_vec; v++) {
            top[v] = v_max(v_load(scores + k * WIDTH + v * LANES), top[v]);
        }
    }
    for (int v = 0; v < n_vec; v++) {
        v_real factor = raise_max(max + v * LANES, v_mul(top[v], v_set1(scale)));
        v_store(rescale + v * LANES, factor);
        top[v] = finite_floor(v_load(max + v * LANES));
        total[v] = v_set1(0);
    }
    for (ptrdiff_t k = 0; k < n_keys; k++) {
        for (int v = 0; v < n_vec; v++) {
            real *at = scores + k * WIDTH + v * LANES;
            v_real e = exp_of(v_fms(v_load(at), v_set1(scale), top[v]));
            total[v] = v_add(total[v], e);
            v_store(at, e);
        }
    }
    for (int v = 0; v < n_vec; v++) {
        v_real before = v_load(sum + v * LANES);
        v_store(sum + v * LANES, v_fma(before, v_load(rescale + v * LANES), total[v]));
    }
}

/* The weight of a score, times scale its logit, in the final softmax; 0 for -inf whatever
 * the row holds. */
static INLINE v_real
weight_of(v_real score, real scale, v_real max, v_real inverse_sum)
{
    v_real weight = v_mul(exp_of(v_fms(score, v_set1(scale), max)), inverse_sum);

    weight = v_select(v_less(score, v_set1(-REAL_MAX)), v_set1(0), weight);
    return quiet_nan_or(weight);
}

#endif
