/* The normal distribution, and activations of a few vectors or of many, in the vocabulary of
 * vec/. */
#ifndef ATTN_KERNEL_MATH_ACTIVATIONS_H
#define ATTN_KERNEL_MATH_ACTIVATIONS_H

#include "core/activate.h"
#include "kernel/math/exp.h"

/* Half of erfc(y / sqrt 2) e^(y^2 / 2) / t as a polynomial in t = 1 / (1 + TAIL_RATE y),
 * for 0 <= y <= 14 of float, 39 of double: beyond, e^(-y^2 / 2) is 0. It interpolates at
 * Chebyshev's points; with the coefficients rounded its relative error is 3e-8 for float,
 * 4e-16 for double (tools/coefficients.py). */
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
    UNROLLED for (int k = DEGREE - 1; k >= 0; k--)
    {
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

#define LOWEST_ACTIVE ((real) - 1e30) /* stands for -inf, since -inf * 0 is NaN */

/* x = x / (1 + e^-v) for n vectors */
static INLINE void
sigmoid_times(v_real *x, const v_real *v, const int n)
{
    v_real e[TOGETHER];

    UNROLLED for (int i = 0; i < n; i++)
    {
        v_real size = v_max(v[i], v_sub(v_set1(0), v[i]));
        e[i] = v_sub(v_set1(0), size);
    }
    exponentiate(e, n);
    UNROLLED for (int i = 0; i < n; i++)
    {
        v_real s = v_select(v_less(v[i], v_set1(0)), e[i], v_set1(1));
        s = v_div(s, v_add(v_set1(1), e[i]));
        x[i] = v_mul(v_max(v_set1(LOWEST_ACTIVE), x[i]), s);
    }
}

static INLINE void
gelu_of(v_real *x, const int n)
{
    v_real part[TOGETHER], density[TOGETHER];

    normal_distribution(x, part, density, n);
    UNROLLED for (int i = 0; i < n; i++)
    {
        x[i] = v_mul(v_max(v_set1(LOWEST_ACTIVE), x[i]), part[i]);
    }
}

#define QUICK_RATE ((real)1.702)
#define GELU_CUBE ((real)0.044715)
#define GELU_RATE ((real)1.5957691216057307) /* 2 sqrt(2 / pi) */

/* The approximation of gelu_of by tanh is x (1 + tanh u) / 2 = x / (1 + e^-2u). This is 2u =
 * GELU_RATE (x + GELU_CUBE x^3). */
static INLINE v_real
gelu_exponent(v_real x)
{
    v_real cube = v_mul(v_mul(x, x), v_mul(x, v_set1(GELU_CUBE)));
    return v_mul(v_add(x, cube), v_set1(GELU_RATE));
}

/* max(x, 0); NaN stays NaN. */
static INLINE v_real
relu_of(v_real x)
{
    return v_max(v_set1(0), x);
}

static INLINE v_real
relu2_of(v_real x)
{
    v_real part = relu_of(x);
    return v_mul(part, part);
}

#define SWIGLU_LIMIT ((real)7)

/* min(x, limit); NaN stays NaN. */
static INLINE v_real
limited(v_real x, v_real limit)
{
    return v_select(v_less(limit, x), limit, x);
}

static INLINE v_real
swiglu_factor_of(v_real x)
{
    x = v_max(v_set1(-SWIGLU_LIMIT), x);
    return v_add(limited(x, v_set1(SWIGLU_LIMIT)), v_set1(1));
}

/* x = the activation of x for n vectors */
static INLINE void
activate_vectors(v_real *x, const int n, attn_activation activation)
{
    v_real v[TOGETHER];
    const v_real rate = v_set1(QUICK_RATE);
    const v_real limit =
        v_set1(activation == ATTN_SWIGLU_OAI ? SWIGLU_LIMIT : (real)INFINITY);

    switch (activation) {
    case ATTN_GELU: gelu_of(x, n); return;
    case ATTN_SILU: sigmoid_times(x, x, n); return;
    case ATTN_GELU_TANH:
    case ATTN_QUICK_GELU:
    case ATTN_SWIGLU_OAI:
        UNROLLED for (int i = 0; i < n; i++)
        {
            x[i] = limited(x[i], limit);
            v[i] =
                activation == ATTN_GELU_TANH ? gelu_exponent(x[i]) : v_mul(x[i], rate);
        }
        sigmoid_times(x, v, n);
        return;
    default: break;
    }
    for (int i = 0; i < n; i++) {
        switch (activation) {
        case ATTN_RELU: x[i] = relu_of(x[i]); break;
        case ATTN_RELU2: x[i] = relu2_of(x[i]); break;
        case ATTN_TANH: x[i] = tanh_of(x[i]); break;
        case ATTN_SWIGLU_OAI_FACTOR: x[i] = swiglu_factor_of(x[i]); break;
        default: break;
        }
    }
}

/* As `activate`, for n vectors at once. */
static INLINE void
activate_some(real *to, const real *from, const real *bias, ptrdiff_t line, const int n,
              attn_activation activation)
{
    v_real x[TOGETHER];

    UNROLLED for (int i = 0; i < n; i++)
    {
        x[i] = v_load(from + i * line);
        x[i] = bias == NULL ? x[i] : v_add(x[i], v_load(bias + i * LANES));
    }
    activate_vectors(x, n, activation);
    UNROLLED for (int i = 0; i < n; i++)
    {
        v_store(to + i * line, x[i]);
    }
}

/* to = the activation of from, plus bias unless that is NULL, for n_vec vectors, `line` reals
 * apart; those of bias lie together. `to` may be `from`. */
static ONE_COPY void
activate(real *to, const real *from, const real *bias, ptrdiff_t line, ptrdiff_t n_vec,
         attn_activation activation)
{
    const int together = (HAS_MANY_ROWS && LANES > 8) || HAS_UNIT
                             ? TOGETHER
                             : 1; /* elsewhere it is not worth the code */
    int n;

    for (; n_vec > 0; n_vec -= n, from += n * line, to += n * line) {
        n = n_vec < together ? 1 : together;
        if (n == TOGETHER) {
            activate_some(to, from, bias, line, TOGETHER, activation);
        } else {
            activate_some(to, from, bias, line, 1, activation);
        }
        bias += bias == NULL ? 0 : n * LANES;
    }
}

#endif
