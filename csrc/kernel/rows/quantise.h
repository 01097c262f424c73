/* A head as integers and a scale: the one with the least squared error, for a cache of int8, or codes of
 * 16 bits, for attention. */
#ifndef ATTN_KERNEL_ROWS_QUANTISE_H
#define ATTN_KERNEL_ROWS_QUANTISE_H

#include "core/bytes.h"
#include "core/rotary.h"
#include "kernel/operands/convert.h"
#include <math.h>
#include <string.h>

/* The largest |x| of a head's numbers; NaN if one is not finite. */
static real
largest(const real *head, ptrdiff_t n)
{
    real most = 0, not_finite = 0;

    for (ptrdiff_t k = 0; k < n; k++) {
        real size = head[k] < 0 ? -head[k] : head[k];
        most = size > most ? size : most;
        not_finite += head[k] * 0;
    }
    return not_finite == 0 ? most : NAN;
}

/* Adds the squared rests of n numbers, up to 512 of them so that sums are exact, for the factor in
 * each lane. core/rotary.h defines rests and factors. */
static INLINE void
add_rests(const real *x, ptrdiff_t n, v_real factor, double *to)
{
    v_real sum = v_set1(0);
    real lanes[LANES];

    for (ptrdiff_t k = 0; k < n; k++) {
        v_real y = v_mul(v_set1(x[k]), factor);
        v_real rest = v_round(v_mul(v_sub(y, v_round(y)), v_set1(256)));
        sum = v_fma(rest, rest, sum);
    }
    v_store(lanes, sum);
    for (ptrdiff_t i = 0; i < LANES; i++) {
        to[i] += (double)lanes[i];
    }
}

/* The factor with the least squared error, of n numbers from -127 to 127. */
static NOINLINE real
best_factor(const real *x, ptrdiff_t n)
{
    real factors[ATTN_SCALES];
    double rests[ATTN_SCALES] = {0}, least_error = INFINITY;
    ptrdiff_t best = 0;

    _Static_assert(ATTN_SCALES % LANES == 0, "factors fill vectors");
    for (ptrdiff_t i = 0; i < ATTN_SCALES; i++) {
        factors[i] = (real)(ATTN_FIRST_FACTOR - (double)i * ATTN_FACTOR_STEP);
    }
    for (ptrdiff_t i = 0; i < ATTN_SCALES; i += LANES) {
        for (ptrdiff_t k = 0; k < n; k += 512) {
            add_rests(x + k, least(n - k, 512), v_load(factors + i), rests + i);
        }
    }
    for (ptrdiff_t i = 0; i < ATTN_SCALES; i++) {
        double factor = (double)factors[i], error = rests[i] / (factor * factor);
        if (error < least_error) {
            least_error = error;
            best = i;
        }
    }
    return factors[best];
}

/* Stores a head as integers, and their scale. */
static NOINLINE void
quantise_head(real *head, ptrdiff_t n, char *output, ptrdiff_t stride, char *to)
{
    real unit = largest(head, n) / 127, factor = 0;
    float scale = (float)unit;

    if (scale > 0) {
        for (ptrdiff_t k = 0; k < n; k++) {
            real x = head[k] / unit;
            head[k] = x > 127 ? 127 : x < -127 ? -127 : x;
        }
        factor = best_factor(head, n);
        scale = (float)(unit / factor);
    }
    memcpy(to, &scale, sizeof scale);
    for (ptrdiff_t k = 0; k < n; k += LANES) {
        ptrdiff_t some = least(n - k, LANES);
        real lanes[LANES] = {0};
        if (scale > 0) {
            memcpy(lanes, head + k, (size_t)some * sizeof(real));
            v_store(lanes, v_round(v_mul(v_load(lanes), v_set1(factor))));
        }
        for (ptrdiff_t i = 0; i < some; i++) {
            ONE_BY_ONE;
            store_element(output + (k + i) * stride, lanes[i], ATTN_I8);
        }
    }
}

/* Stores a head, which zeros fill up, as codes of 16 bits, and their scale. */
static void
code_head(const attn_byte_kernel *bytes, real *head, ptrdiff_t n, char *output,
          char *to)
{
#if REAL_BITS == 32
    ptrdiff_t whole = round_up(n, ATTN_CODE_UNIT);
    float unit, back;

    memset(head + n, 0, (size_t)(whole - n) * sizeof(real));
    if (!bytes->round_row(head, whole, ATTN_LARGEST_SHORT, output, &unit, &back)) {
        memset(output, 0, (size_t)whole * sizeof(int16_t));
        unit = NAN;
    }
    unit *= back;
    memcpy(to, &unit, sizeof unit);
#else
    (void)bytes, (void)head, (void)n, (void)output, (void)to;
#endif
}

#endif
