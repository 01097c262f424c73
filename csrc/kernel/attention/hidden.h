/* Weighted sums of values of which some are not finite: 0 * NaN of a masked key must not
 * come into a result. */
#ifndef ATTN_KERNEL_ATTENTION_HIDDEN_H
#define ATTN_KERNEL_ATTENTION_HIDDEN_H

#include "kernel/attention/task.h"
#include "kernel/matrix.h"

/* start + the sum of weights[k] * values[k][d] over the steps k < n, of terms that a row
 * may see; the first is key `first` of the block. */
static real
sum_seen_values(const work *w, ptrdiff_t row, ptrdiff_t first, ptrdiff_t n,
                const operand *weights, ptrdiff_t step, matrix values, ptrdiff_t d,
                real start)
{
    v_real sum = v_set1(start);
    real lanes[LANES];

    for (ptrdiff_t k = 0; k < n; k++) {
        ptrdiff_t key = first + k * TERMS;
        operand value = keep_terms(values.at[k * values.row + d],
                                   w->see[row][key / 64] >> (key % 64));
        sum = v_dot(v_set1_operand(weights[k * step]), v_set1_operand(value), sum);
    }
    v_store(lanes, sum);
    return lanes[0];
}

#endif
