/* Normalization of rows. Sums are 16 chains, of every 16th number, whatever LANES is. */
#ifndef ATTN_KERNEL_NORM_H
#define ATTN_KERNEL_NORM_H

#include "core/norm.h"
#include "kernel/sizes.h"
#include <math.h>
#include <string.h>

enum { CHAINS = 16, CHAIN_VECTORS = CHAINS > LANES ? CHAINS / LANES : 1 };

/* The sum of the numbers, or of their squares, in each case less `less`. */
static real
sum_row(const real *row, ptrdiff_t n, real less, const bool squares)
{
    v_real part[CHAIN_VECTORS];
    real sums[CHAINS], rest[CHAINS];
    ptrdiff_t k = 0;

    for (int j = 0; j < CHAIN_VECTORS; j++) {
        part[j] = v_set1(0);
    }
    for (; k < n; k += CHAINS) {
        const real *at = row + k;
        if (n - k < CHAINS) { /* what is missing counts 0 */
            for (int i = 0; i < CHAINS; i++) {
                rest[i] = i < n - k ? at[i] : less;
            }
            at = rest;
        }
        for (int j = 0; j < CHAIN_VECTORS; j++) {
            v_real x = v_sub(v_load(at + j * LANES), v_set1(less));
            part[j] = squares ? v_fma(x, x, part[j]) : v_add(part[j], x);
        }
    }
    for (int j = 0; j < CHAIN_VECTORS; j++) {
        v_store(sums + j * LANES, part[j]);
    }
    for (int step = CHAINS / 2; step > 0; step /= 2) {
        for (int i = 0; i < step; i++) {
            sums[i] += sums[i + step];
        }
    }
    return sums[0];
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

/* y = (x - mean) * scale * weight + bias for LANES numbers. */
static INLINE v_real
normalize_lanes(v_real x, real mean, real scale, const real *weight, const real *bias)
{
    v_real y = v_mul(v_sub(x, v_set1(mean)), v_set1(scale));

    return bias == NULL ? v_mul(y, v_load(weight))
                        : v_fma(y, v_load(weight), v_load(bias));
}

/* Copies up to LANES numbers to the start of a buffer of LANES. */
static const real *
padded(real buffer[LANES], const real *from, ptrdiff_t n)
{
    if (from == NULL) {
        return NULL;
    }
    memset(buffer, 0, LANES * sizeof(real));
    memcpy(buffer, from, (size_t)n * sizeof(real));
    return buffer;
}

static void
normalize_row(const attn_norm_problem *p, const real *input, const real *residual,
              real *output)
{
    const real *weight = p->weight, *bias = p->bias;
    ptrdiff_t n = p->n_columns, k = 0;
    real size = (real)n, mean = 0;
    real x[LANES], w[LANES], b[LANES];

    for (ptrdiff_t i = 0; i < n; i++) {
        output[i] = residual == NULL ? input[i] : input[i] + residual[i];
    }
    if (p->centre) {
        mean = sum_row(output, n, 0, false) / size;
    }
    real variance = sum_row(output, n, mean, true) / size + (real)p->eps;
    real scale = 1 / square_root(variance);
    for (; k + LANES <= n; k += LANES) {
        v_store(output + k, normalize_lanes(v_load(output + k), mean, scale, weight + k,
                                            bias == NULL ? NULL : bias + k));
    }
    if (k < n) {
        padded(x, output + k, n - k);
        padded(w, weight + k, n - k);
        v_store(x, normalize_lanes(v_load(x), mean, scale, w,
                                   padded(b, bias == NULL ? NULL : bias + k, n - k)));
        memcpy(output + k, x, (size_t)(n - k) * sizeof(real));
    }
}

static void
normalize(const attn_norm_problem *p, ptrdiff_t first_row, ptrdiff_t n_rows)
{
    for (ptrdiff_t r = first_row; r < first_row + n_rows; r++) {
        ptrdiff_t at = r * p->n_columns;
        const real *residual = p->residual;
        normalize_row(p, (const real *)p->input + at,
                      residual == NULL ? NULL : residual + at, (real *)p->output + at);
    }
}

#endif
