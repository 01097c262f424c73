/* Activations of numbers, in the vocabulary of vec/. */
#ifndef ATTN_KERNEL_ACTIVATE_H
#define ATTN_KERNEL_ACTIVATE_H

#include "core/activate.h"
#include "kernel/distribution.h"

#define LOWEST_ACTIVE ((real) - 1e30) /* stands for -inf, which has no product with 0 */

/* x / (1 + e^-v) */
static INLINE v_real
sigmoid_times(v_real x, v_real v)
{
    v_real size = v_max(v, v_sub(v_set1(0), v));
    v_real e = exp_of(v_sub(v_set1(0), size));
    v_real s = v_select(v_less(v, v_set1(0)), e, v_set1(1));

    return v_mul(v_max(v_set1(LOWEST_ACTIVE), x), v_div(s, v_add(v_set1(1), e)));
}

static INLINE v_real
gelu_of(v_real x)
{
    v_real density, part = normal_distribution(x, &density);
    return v_mul(v_max(v_set1(LOWEST_ACTIVE), x), part);
}

#define QUICK_RATE ((real)1.702)
#define GELU_CUBE ((real)0.044715)
#define GELU_RATE ((real)1.5957691216057307) /* 2 sqrt(2 / pi) */

/* 2u of what follows: GELU_RATE (x + GELU_CUBE x^3). */
static INLINE v_real
gelu_exponent(v_real x)
{
    v_real cube = v_mul(v_mul(x, x), v_mul(x, v_set1(GELU_CUBE)));
    return v_mul(v_add(x, cube), v_set1(GELU_RATE));
}

/* The approximation of gelu_of by tanh: x (1 + tanh u) / 2 = x / (1 + e^-2u). */
static INLINE v_real
gelu_tanh_of(v_real x)
{
    return sigmoid_times(x, gelu_exponent(x));
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

/* to = the activation of from, plus bias unless that is NULL, for n_vec vectors, `line` reals apart;
 * those of bias lie together. `to` may be `from`. */
static ONE_COPY void
activate(real *to, const real *from, const real *bias, ptrdiff_t line, ptrdiff_t n_vec,
         attn_activation activation)
{
    for (ptrdiff_t i = 0; i < n_vec; i++, from += line, to += line) {
        v_real x = v_load(from);
        if (bias != NULL) {
            x = v_add(x, v_load(bias + i * LANES));
        }
        switch (activation) {
        case ATTN_RELU: x = relu_of(x); break;
        case ATTN_GELU: x = gelu_of(x); break;
        case ATTN_GELU_TANH: x = gelu_tanh_of(x); break;
        case ATTN_SILU: x = sigmoid_times(x, x); break;
        case ATTN_QUICK_GELU: x = sigmoid_times(x, v_mul(x, v_set1(QUICK_RATE))); break;
        case ATTN_RELU2: x = relu2_of(x); break;
        case ATTN_TANH: x = tanh_of(x); break;
        default: break;
        }
        v_store(to, x);
    }
}

#endif
