/* The activation of a row, or of a column of vectors. */
#ifndef ATTN_KERNEL_ACTIVATE_H
#define ATTN_KERNEL_ACTIVATE_H

#include "kernel/activations.h"

/* As activate, for n vectors at once. */
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

/* to = the activation of from, plus bias unless that is NULL, for n_vec vectors, `line` reals apart;
 * those of bias lie together. `to` may be `from`. */
static ONE_COPY void
activate(real *to, const real *from, const real *bias, ptrdiff_t line, ptrdiff_t n_vec,
         attn_activation activation)
{
    const int together =
        WIDE_TASKS ? TOGETHER : 1; /* elsewhere it is not worth the code */
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
