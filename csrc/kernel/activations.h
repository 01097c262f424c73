/* Activations of vectors, in the vocabulary of vec/. */
#ifndef ATTN_KERNEL_ACTIVATIONS_H
#define ATTN_KERNEL_ACTIVATIONS_H

#include "core/activate.h"
#include "kernel/distribution.h"

#define LOWEST_ACTIVE ((real) - 1e30) /* stands for -inf, which has no product with 0 */

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

/* 2u of the approximation of gelu_of by tanh, x (1 + tanh u) / 2 = x / (1 + e^-2u):
 * GELU_RATE (x + GELU_CUBE x^3). */
static INLINE v_real
gelu_exponent(v_real x)
{
    v_real cube = v_mul(v_mul(x, x), v_mul(x, v_set1(GELU_CUBE)));
    return v_mul(v_add(x, cube), v_set1(GELU_RATE));
}

/* x, where it is not positive 0; NaN stays NaN. */
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

/* x = the activation of x for n vectors */
static INLINE void
activate_vectors(v_real *x, const int n, attn_activation activation)
{
    v_real v[TOGETHER];
    v_real rate = v_set1(QUICK_RATE);

    switch (activation) {
    case ATTN_GELU: gelu_of(x, n); return;
    case ATTN_SILU: sigmoid_times(x, x, n); return;
    case ATTN_GELU_TANH:
    case ATTN_QUICK_GELU:
        UNROLLED for (int i = 0; i < n; i++)
        {
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
        default: break;
        }
    }
}

#endif
