/* The derivatives of activations. */
#ifndef ATTN_KERNEL_MATH_ACTIVATION_GRAD_H
#define ATTN_KERNEL_MATH_ACTIVATION_GRAD_H

#include "kernel/math/activations.h"

/* From here on every derivative that has a limit equals it; inputs are clamped to this, so that
 * nothing overflows. */
#define STEEP_UNTIL ((real)1000)

static INLINE v_real
bounded(v_real x)
{
    v_real bound = v_set1(STEEP_UNTIL);
    x = v_max(v_set1(-STEEP_UNTIL), x);
    return v_select(v_less(bound, x), bound, x);
}

/* The derivative of x s(v), where s is the logistic function: s(v) + s(v) s(-v) rise, with
 * rise = x v'. */
static INLINE v_real
sigmoid_times_grad(v_real v, v_real rise)
{
    v_real size = v_max(v, v_sub(v_set1(0), v));
    v_real e = exp_of(v_sub(v_set1(0), size)), sum = v_add(v_set1(1), e);
    v_real s = v_div(v_select(v_less(v, v_set1(0)), e, v_set1(1)), sum);

    return v_fma(v_div(e, v_mul(sum, sum)), rise, s);
}

static INLINE v_real
gelu_grad(v_real x)
{
    v_real density, part;

    normal_distribution(&x, &part, &density, 1);
    return v_fma(v_mul(x, v_set1((real)0.3989422804014327)), density, part);
}

static INLINE v_real
gelu_tanh_grad(v_real x)
{
    v_real square = v_mul(v_mul(x, x), v_set1(3 * GELU_CUBE));
    v_real rise = v_mul(v_mul(x, v_set1(GELU_RATE)), v_add(v_set1(1), square));

    return sigmoid_times_grad(gelu_exponent(x), rise);
}

/* 1 - tanh^2 = 4 e / (1 + e)^2 with e = e^(-2|x|): nothing cancels. */
static INLINE v_real
tanh_grad(v_real x)
{
    v_real size = v_max(x, v_sub(v_set1(0), x));
    v_real e = exp_of(v_mul(size, v_set1(-2))), sum = v_add(v_set1(1), e);

    return v_div(v_mul(e, v_set1(4)), v_mul(sum, sum));
}

/* Replaces n reals, and those that fill up the last vector, by the activation's derivatives. */
static NOINLINE void
activation_grads(real *at, ptrdiff_t n, attn_activation activation)
{
    const v_real zero = v_set1(0);

    for (ptrdiff_t k = 0; k < n; k += LANES) {
        v_real given = v_load(at + k), x = bounded(given), grad = v_set1(1), v, limit;
        switch (activation) {
        case ATTN_RELU: grad = v_select(v_less(zero, x), grad, zero); break;
        case ATTN_GELU: grad = gelu_grad(x); break;
        case ATTN_GELU_TANH: grad = gelu_tanh_grad(x); break;
        case ATTN_SILU: grad = sigmoid_times_grad(x, x); break;
        case ATTN_QUICK_GELU:
        case ATTN_SWIGLU_OAI:
            limit =
                v_set1(activation == ATTN_QUICK_GELU ? (real)INFINITY : SWIGLU_LIMIT);
            v = v_mul(limited(x, limit), v_set1(QUICK_RATE));
            grad = v_select(v_less(limit, x), zero, sigmoid_times_grad(v, v));
            break;
        case ATTN_RELU2: grad = v_mul(relu_of(given), v_set1(2)); break;
        case ATTN_TANH: grad = tanh_grad(x); break;
        default: break;
        }
        v_store(at + k, v_select(v_is_nan(given), given, grad));
    }
}

#endif
