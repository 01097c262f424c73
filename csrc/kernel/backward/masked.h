/* Sums with masked terms that are not finite: 0 * NaN must not reach a gradient. */
#ifndef ATTN_KERNEL_BACKWARD_MASKED_H
#define ATTN_KERNEL_BACKWARD_MASKED_H

#include "kernel/backward/task.h"

/* One of the products that add to gradients: to[i][d] += the sum over the terms of
 * factors[i][term] * terms[term][d]. */
typedef struct {
    bool by_key; /* a term is a key, and i one of the tile's rows; else the reverse */
    const operand *factors;
    ptrdiff_t factor_row, factor_step; /* operands from i to i, from term to term */
    matrix terms;
    real *to;
    ptrdiff_t to_row, to_column; /* reals from i to i, from d to d */
    ptrdiff_t n_sums, n_terms, n_columns;
    ptrdiff_t first_key; /* of the sum, in its block */
    ptrdiff_t first_row; /* in the tile */
} gradient_sum;

/* Bit k: may the row see the key of term k of operand `step` in sum i? */
static uint64_t
seen_terms(const backward_work *w, const gradient_sum *s, ptrdiff_t step, ptrdiff_t i)
{
    uint64_t seen = 0;

    for (ptrdiff_t k = 0; k < TERMS && step * TERMS + k < s->n_terms; k++) {
        ptrdiff_t term = step * TERMS + k;
        ptrdiff_t key = s->first_key + (s->by_key ? term : i);
        ptrdiff_t row = s->first_row + (s->by_key ? i : term);
        seen |= (w->rows.see[row][key / 64] >> (key % 64) & 1) << k;
    }
    return seen;
}

/* The product without its masked terms. */
static NOINLINE void
add_seen_terms(const backward_work *w, const gradient_sum *s)
{
    for (ptrdiff_t i = 0; i < s->n_sums; i++) {
        for (ptrdiff_t d = 0; d < s->n_columns; d++) {
            real lanes[LANES], *to = s->to + i * s->to_row + d * s->to_column;
            v_real sum = v_set1(0);
            for (ptrdiff_t t = 0; t * TERMS < s->n_terms; t++) {
                uint64_t seen = seen_terms(w, s, t, i);
                if (seen != 0) {
                    operand a = s->factors[i * s->factor_row + t * s->factor_step];
                    operand b = s->terms.at[t * s->terms.row + d];
                    sum = v_dot(v_set1_operand(a), v_set1_operand(keep_terms(b, seen)),
                                sum);
                }
            }
            v_store(lanes, v_add(v_set1(*to), sum));
            *to = lanes[0];
        }
    }
}

#endif
