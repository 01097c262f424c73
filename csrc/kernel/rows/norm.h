/* Normalization of rows. */
#ifndef ATTN_KERNEL_ROWS_NORM_H
#define ATTN_KERNEL_ROWS_NORM_H

#include "kernel/rows/moments.h"

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

/* output = input, plus residual unless that is NULL. */
static void
add_residual(real *output, const real *input, const real *residual, ptrdiff_t n)
{
    if (residual == NULL) {
        memcpy(output, input, (size_t)n * sizeof(real));
        return;
    }
    for (ptrdiff_t k = 0; k < n; k++) {
        output[k] = input[k] + residual[k];
    }
}

static void
normalize_row(const attn_norm_problem *p, const real *input, const real *residual,
              real *output, real *moments)
{
    const real *weight = p->weight, *bias = p->bias;
    ptrdiff_t n = p->n_columns, k = 0;
    real mean, scale, x[LANES], w[LANES], b[LANES];

    add_residual(output, input, residual, n);
    measure_row(p, output, &mean, &scale);
    if (moments != NULL) {
        moments[0] = mean;
        moments[p->n_rows] = scale;
    }
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
        real *moments = p->moments;
        normalize_row(p, (const real *)p->input + at,
                      residual == NULL ? NULL : residual + at, (real *)p->output + at,
                      moments == NULL ? NULL : moments + r);
    }
}

#endif
