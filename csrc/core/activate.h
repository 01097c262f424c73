/* Activations, of arrays or as a step of linear products. */
#ifndef ATTN_CORE_ACTIVATE_H
#define ATTN_CORE_ACTIVATE_H

#include "core/array.h"
#include "core/tasks.h"

typedef enum {
    ATTN_IDENTITY,
    ATTN_RELU,
    ATTN_GELU,       /* x times the normal distribution function of x */
    ATTN_GELU_TANH,  /* its approximation by tanh */
    ATTN_SILU,       /* x times the logistic function of x */
    ATTN_QUICK_GELU, /* x times the logistic function of 1.702 x */
    ATTN_RELU2,      /* the square of the positive part */
    ATTN_TANH,
    ATTN_SWIGLU_OAI,       /* quick GELU of min(x, 7), which has `times`: */
    ATTN_SWIGLU_OAI_FACTOR /* x, limited to -7 and 7, plus 1 */
} attn_activation;

/* The activation of what another one has as `times`. */
static inline attn_activation
attn_activation_of_times(attn_activation activation)
{
    return activation == ATTN_SWIGLU_OAI ? ATTN_SWIGLU_OAI_FACTOR : ATTN_IDENTITY;
}

/* Contiguous numbers; data is NULL where there are none. */
typedef struct {
    char *data;
    attn_dtype dtype;
} attn_numbers;

/* f(x) * times; or its gradient with respect to x, grad_output * times * f'(x), where there
 * is a grad_output. Each product is rounded. output may be x. */
typedef struct {
    ptrdiff_t n;           /* of each */
    attn_dtype arithmetic; /* ATTN_F32 or ATTN_F64 */
    attn_activation activation;
    attn_numbers x;
    attn_numbers times;       /* or none: 1 */
    attn_numbers grad_output; /* or none */
    attn_numbers output;
} attn_activate_problem;

typedef struct {
    /* Numbers first .. first + n - 1. */
    void (*run)(const attn_activate_problem *, ptrdiff_t first, ptrdiff_t n);
} attn_activate_kernel;

double attn_activate_work(const attn_activate_problem *);

/* Cannot fail: it needs no memory. */
void attn_activate(const attn_activate_problem *, attn_call *);

#endif
