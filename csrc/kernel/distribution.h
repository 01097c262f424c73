/* The normal distribution, in the vocabulary of vec/. */
#ifndef ATTN_KERNEL_DISTRIBUTION_H
#define ATTN_KERNEL_DISTRIBUTION_H

#include "kernel/math.h"

/* Half of erfc(y / sqrt 2) e^(y^2 / 2) / t as a polynomial in t = 1 / (1 + TAIL_RATE y),
 * for y >= 0 as far as e^(-y^2 / 2) is not 0. It interpolates at Chebyshev's points; its
 * relative error is 3e-8 for float, 4e-16 for double. */
#if REAL_BITS == 32
#define TAIL_RATE 0.3125f
static const real tail_terms[] = {0.1246632021f,   0.12479556931f,  0.11148063051f,
                                  0.092092316902f, 0.049410156261f, 0.0094734142662f,
                                  0.059182295202f, -0.13929771754f, 0.086237910875f,
                                  -0.018037781209f};
#else
#define TAIL_RATE 0.203125
static const real tail_terms[] = {
    0.081035150712110567468,   0.081035150325475035745,  0.077691671464538028729,
    0.07100444045782651913,    0.061391255430035238979,  0.049637638335005586947,
    0.037248334299152378991,   0.023254242200922830156,  0.020970731911426863926,
    -0.020937758661339288029,  0.084746146416638018704,  -0.21715693205477216769,
    0.44866931624892634142,    -0.76940531318482475272,  1.0590382498314295982,
    -1.1667350407857700097,    1.0108163442717879217,    -0.66821195347228668607,
    0.32598153603275801946,    -0.11267102151247091137,  0.025904883171362069552,
    -0.0035163257531104735652, 0.00020925431517926911171};
#endif

/* The normal distribution function of x, and e^(-x^2 / 2), for n vectors. */
static INLINE void
normal_distribution(const v_real *x, v_real *part, v_real *density, const int n)
{
    enum { DEGREE = sizeof tail_terms / sizeof tail_terms[0] - 1 };
    v_real t[TOGETHER], q[TOGETHER];

    UNROLLED for (int i = 0; i < n; i++)
    {
        v_real size = v_max(x[i], v_sub(v_set1(0), x[i]));
        t[i] = v_div(v_set1(1), v_fma(size, v_set1(TAIL_RATE), v_set1(1)));
        density[i] = v_mul(v_mul(size, size), v_set1((real)-0.5));
        q[i] = v_set1(tail_terms[DEGREE]);
    }
    exponentiate(density, n);
    for (int k = DEGREE - 1; k >= 0; k--) {
        UNROLLED for (int i = 0; i < n; i++)
        {
            q[i] = v_fma(q[i], t[i], v_set1(tail_terms[k]));
        }
    }
    UNROLLED for (int i = 0; i < n; i++)
    {
        v_real tail = v_mul(density[i], v_mul(q[i], t[i]));
        part[i] = v_select(v_less(x[i], v_set1(0)), tail, v_sub(v_set1(1), tail));
    }
}

#endif
