/* The functions that attention needs, in the vocabulary of vec/: every tier takes the same
 * IEEE steps, so gives the same bits.
 *
 * exp2: 2^x = 2^n * 2^r with n = round(x) and |r| <= 1/2. The first coefficient of
 * q(r) = (2^r - 1) / r is ln 2, rounded, so that tanh is right near 0; the others minimise
 * the relative error of 1 + r q(r), by Remez's algorithm. With the coefficients rounded it is
 * 3.6e-9 for float, 8.9e-18 for double (tools/coefficients.py), so other roundings prevail:
 * e^x is off by 1 unit in the last place for x >= -1, and by another 0.22 |x| below, from the
 * rounding of log2 e (tests/core): weights as small as that matter little. */
#ifndef ATTN_KERNEL_MATH_EXP_H
#define ATTN_KERNEL_MATH_EXP_H

#include "kernel/sizes.h"
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if REAL_BITS == 32
#define REAL_MAX FLT_MAX
#define EXP2_LOWEST (-125.99998f) /* 2^x, x rounded, is a normal number from here on */
#define TANH_IS_ONE 10.0f         /* tanh(x) rounds to 1 from below here on */
static const real exp2_terms[] = {
    0.693147182464599609375f,  0.24022647586257825232f,   0.055503595907019825699f,
    0.0096185175586899456653f, 0.0013390958472449406698f, 0.00015324315532225805113f};
#else
#define REAL_MAX DBL_MAX
#define EXP2_LOWEST (-1021.9999999999995)
#define TANH_IS_ONE 20.0
static const real exp2_terms[] = {
    0.693147180559945286226764, 0.24022650695910109484,   0.055504108664821719496,
    0.0096181291076012007603,   0.0013333558146546364511, 0.00015403530449476093088,
    0.000015252733634471358829, 1.3215438641312790316e-6, 1.0178159657082155878e-7,
    7.0732632717521916175e-9,   4.438942213116881194e-10};
#endif

static const real log2_e = (real)1.44269504088896340736;

/* The most vectors that a function takes at a time. The steps for one vector depend on each
 * other, so several keep the CPU busy. */
enum { TOGETHER = 3 };

/* q = (2^r - 1) / r for n vectors, |r| <= 1/2 */
static INLINE void
exp2_quotients(v_real *q, const v_real *r, const int n)
{
    enum { DEGREE = sizeof exp2_terms / sizeof exp2_terms[0] - 1 };

    UNROLLED for (int i = 0; i < n; i++)
    {
        q[i] = v_set1(exp2_terms[DEGREE]);
    }
    UNROLLED for (int k = DEGREE - 1; k >= 0; k--)
    {
        UNROLLED for (int i = 0; i < n; i++)
        {
            q[i] = v_fma(q[i], r[i], v_set1(exp2_terms[k]));
        }
    }
}

/* x = e^x for n vectors, x <= 0: below the smallest normal number it is 0; NaN stays NaN. */
static INLINE void
exponentiate(v_real *x, const int n)
{
    v_real power[TOGETHER], r[TOGETHER], q[TOGETHER];
    v_mask is_small[TOGETHER];

    UNROLLED for (int i = 0; i < n; i++)
    {
        v_real y = v_mul(x[i], v_set1(log2_e));
        is_small[i] = v_less(y, v_set1(EXP2_LOWEST));
        power[i] = v_round(y);
        r[i] = v_fms(x[i], v_set1(log2_e), power[i]); /* not y - n: y is rounded */
    }
    exp2_quotients(q, r, n);
    UNROLLED for (int i = 0; i < n; i++)
    {
        v_real factor = v_fma(q[i], r[i], v_set1(1));
        x[i] = v_scale2_unless(is_small[i], factor, power[i]);
    }
}

static INLINE v_real
exp_of(v_real x)
{
    exponentiate(&x, 1);
    return x;
}

/* Weights are exponentials of scale * score - max. A matrix unit rounds them to bfloat16, so that
 * shorter steps suffice there: 2^y = 2^n * 2^f with n = floor(y), which the scaling takes itself,
 * and 2^f = 1 + f q(f). The relative error is 9.4e-8 for weights. Gradients know the LSE in place
 * of the max, and their weights are at most 1 even where it is rounded. */
#ifdef MATRIX_UNIT
static const real weight_terms[] = {0.69315131180460087540f, 0.24016445015509335748f,
                                    0.055799913103730322068f, 0.0090170303224482018160f,
                                    0.0018671300698754375973f};

/* Below this 2^y is less than 2^-126 - 2^-134, so that bfloat16 rounds it to a subnormal number. */
#define SUBNORMAL_EXPONENT (-126.0078125f)

/* What is subtracted from exponents; never -inf, which has no differences. */
static INLINE v_real
exponent_base(v_real max)
{
    return v_max(v_mul(max, v_set1(log2_e)), v_set1(-REAL_MAX));
}

static INLINE real
exponent_scale(real scale)
{
    return scale * log2_e;
}

/* 2^y, y <= 0, or 0 where `is_zero` */
static INLINE v_real
weight_exp2(v_real y, v_mask is_zero)
{
    enum { N = sizeof weight_terms / sizeof weight_terms[0] };
    v_real f = u_fraction(y), q = v_set1(weight_terms[N - 1]);

    UNROLLED for (int k = N - 2; k >= 0; k--)
    {
        q = v_fma(q, f, v_set1(weight_terms[k]));
    }
    return v_scale2_unless(is_zero, v_fma(q, f, v_set1(1)), y);
}

static INLINE v_real
weight_exp(v_real score, v_real scale, v_real base)
{
    return weight_exp2(v_fms(score, scale, base), v_mask_of(0));
}

/* The same for products, with 0 for what is subnormal as bfloat16: the unit takes it for 0, and
 * CPUs take a hundred times as long for a vector with a subnormal number. */
static INLINE v_real
operand_exp(v_real score, v_real scale, v_real base)
{
    v_real y = v_fms(score, scale, base);

    return weight_exp2(y, v_less(y, v_set1(SUBNORMAL_EXPONENT)));
}

static INLINE v_real
weight_exp_by_lse(v_real score, v_real scale, v_real lse)
{
    v_real y = v_fms(score, scale, lse), zero = v_set1(0);

    return weight_exp2(v_select(v_less(zero, y), zero, y), v_mask_of(0));
}
#else
static INLINE v_real
exponent_base(v_real max)
{
    return v_max(max, v_set1(-REAL_MAX));
}

static INLINE real
exponent_scale(real scale)
{
    return scale;
}

static INLINE v_real
weight_exp(v_real score, v_real scale, v_real base)
{
    return exp_of(v_fms(score, scale, base));
}

static INLINE v_real
operand_exp(v_real score, v_real scale, v_real base)
{
    return weight_exp(score, scale, base);
}

static INLINE v_real
weight_exp_by_lse(v_real score, v_real scale, v_real lse)
{
    v_real x = v_sub(TERMS > 1 ? v_mul(score, scale) : score, lse), zero = v_set1(0);

    return exp_of(v_select(v_less(zero, x), zero, x));
}
#endif

/* tanh(|x|) = E / (E + 2) with E = e^(2|x|) - 1, accurate where x is small. */
static INLINE v_real
tanh_of(v_real x)
{
    v_real size = v_max(x, v_sub(v_set1(0), x));
    v_real limit = v_set1(TANH_IS_ONE);
    v_real y = v_select(v_less(limit, size), limit, size);
    v_real n = v_round(v_mul(y, v_set1(2 * log2_e)));
    v_real r = v_fms(y, v_set1(2 * log2_e), n);
    v_real power = v_scale2(v_set1(1), n), q;

    exp2_quotients(&q, &r, 1);
    v_real e = v_fma(power, v_mul(q, r), v_sub(power, v_set1(1)));
    v_real t = v_div(e, v_add(e, v_set1(2)));

    return v_select(v_less(x, v_set1(0)), v_sub(v_set1(0), t), t);
}

static INLINE v_real
quiet_nan_or(v_real x)
{
    return v_select(v_is_nan(x), v_set1((real)NAN), x);
}

/* The same for a single number. */
static INLINE real
one_nan_or(real x)
{
    return x != x ? (real)NAN : x;
}

#endif
