/* The natural logarithm, of a number and of lanes: every tier takes the same IEEE steps. */
#ifndef ATTN_KERNEL_MATH_LOG_H
#define ATTN_KERNEL_MATH_LOG_H

#include "kernel/sizes.h"
#include <float.h>
#include <stdint.h>
#include <string.h>

#if REAL_BITS == 32
#define REAL_MIN FLT_MIN
#define LN2_HIGH 0x1.62e4p-1f /* 15 bits: exact times any exponent */
#define LN2_LOW 0x1.7f7d1cp-20f
static const real log_terms[] = {1, 1.0f / 3, 1.0f / 5, 1.0f / 7, 1.0f / 9};
#else
#define REAL_MIN DBL_MIN
#define LN2_HIGH 0x1.62e42feep-1 /* 32 bits */
#define LN2_LOW 0x1.a39ef35793c76p-33
static const real log_terms[] = {1,        1.0 / 3,  1.0 / 5,  1.0 / 7,
                                 1.0 / 9,  1.0 / 11, 1.0 / 13, 1.0 / 15,
                                 1.0 / 17, 1.0 / 19, 1.0 / 21};
#endif

/* The natural logarithm of a finite x >= 1/2, by the series of 2 atanh((f - 1) / (f + 1));
 * its first omitted term is below 2^-60 of the sum. Off by less than 4.2 units in the last
 * place: f + 1, the quotient, the sum and its product are rounded, by 2^-53 of themselves at
 * most, and all else adds up to 0.2 of that. Random numbers show 3.0 (tests/core). */
static double
log_of(double x)
{
    const double ln2_high = 0x1.62e42feep-1; /* 32 bits: exact times any exponent */
    const double ln2_low = 0x1.a39ef35793c76p-33;
    uint64_t bits;
    double f;

    memcpy(&bits, &x, sizeof bits);
    /* The exponent that brings the fraction into [sqrt(1/2), sqrt(2)) */
    int64_t exponent = (int64_t)((bits + UINT64_C(0x00095f619980c433)) >> 52) - 1023;
    bits -= (uint64_t)exponent << 52;
    memcpy(&f, &bits, sizeof f);

    double s = (f - 1) / (f + 1);
    double z = s * s;
    double sum = 1.0 / 21;
    for (int k = 19; k >= 1; k -= 2) {
        sum = sum * z + 1.0 / k;
    }
    return (double)exponent * ln2_high + (2 * s * sum + (double)exponent * ln2_low);
}

/* The natural logarithm of normal numbers up to 2^126, by the series of log_of with as many
 * terms as real needs. With these rounded the sum's relative error is 1.8e-9 for float,
 * 1.2e-18 for double (tools/coefficients.py). Nothing is fused, so that NumPy can take the
 * same steps. NaN stays NaN. */
static INLINE v_real
log_lanes(v_real x)
{
    enum { DEGREE = sizeof log_terms / sizeof log_terms[0] - 1 };
    v_real n = v_exponent(v_mul(x, v_set1((real)1.41421356237309504880)));
    v_real f = v_mul(x, v_scale2(v_set1(1), v_sub(v_set1(0), n)));
    v_real s = v_div(v_sub(f, v_set1(1)), v_add(f, v_set1(1)));
    v_real z = v_mul(s, s);
    v_real sum = v_set1(log_terms[DEGREE]);

    UNROLLED for (int k = DEGREE - 1; k >= 0; k--)
    {
        sum = v_add(v_mul(sum, z), v_set1(log_terms[k]));
    }
    v_real low = v_mul(n, v_set1(LN2_LOW));
    v_real of_f = v_add(v_mul(v_add(s, s), sum), low);
    return v_add(v_mul(n, v_set1(LN2_HIGH)), of_f);
}

#endif
