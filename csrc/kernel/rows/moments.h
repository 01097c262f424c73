/* Sums over a row, its mean and its scale. Sums are 16 chains, of every 16th number, whatever
 * LANES is. */
#ifndef ATTN_KERNEL_ROWS_MOMENTS_H
#define ATTN_KERNEL_ROWS_MOMENTS_H

#include "core/norm.h"
#include "kernel/sizes.h"
#include <math.h>
#include <string.h>

enum { CHAINS = ATTN_NORM_CHAINS, CHAIN_VECTORS = CHAINS > LANES ? CHAINS / LANES : 1 };

/* The sum of all chains, pairwise. */
static INLINE real
sum_chains(const v_real part[CHAIN_VECTORS])
{
    real sums[CHAINS];

    UNROLLED for (int j = 0; j < CHAIN_VECTORS; j++)
    {
        v_store(sums + j * LANES, part[j]);
    }
    for (int step = CHAINS / 2; step > 0; step /= 2) {
        for (int i = 0; i < step; i++) {
            sums[i] += sums[i + step];
        }
    }
    return sums[0];
}

/* The sum of the numbers, or of their squares, in each case less `less`. */
static ONE_COPY real
sum_row(const real *row, ptrdiff_t n, real less, const bool squares)
{
    v_real part[CHAIN_VECTORS];
    real rest[CHAINS];
    ptrdiff_t k = 0;

    UNROLLED for (int j = 0; j < CHAIN_VECTORS; j++)
    {
        part[j] = v_set1(0);
    }
    for (; k < n; k += CHAINS) {
        const real *at = row + k;
        if (n - k < CHAINS) { /* missing numbers count 0 */
            for (int i = 0; i < CHAINS; i++) {
                rest[i] = less;
            }
            memcpy(rest, at, (size_t)(n - k) * sizeof(real));
            at = rest;
        }
        UNROLLED for (int j = 0; j < CHAIN_VECTORS; j++)
        {
            v_real x = v_sub(v_load(at + j * LANES), v_set1(less));
            part[j] = squares ? v_fma(x, x, part[j]) : v_add(part[j], x);
        }
    }
    return sum_chains(part);
}

static real
square_root(real x)
{
#if REAL_BITS == 32
    return sqrtf(x);
#else
    return sqrt(x);
#endif
}

/* The mean of a row, or 0 if it is not centred, and the inverse of its deviation from that. */
static NOINLINE void
measure_row(const attn_norm_problem *p, const real *row, real *mean, real *scale)
{
    ptrdiff_t n = p->n_columns;
    real size = (real)n;

    *mean = p->centre ? sum_row(row, n, 0, false) / size : 0;
    real variance = sum_row(row, n, *mean, true) / size + (real)p->eps;
    *scale = 1 / square_root(variance);
}

#endif
