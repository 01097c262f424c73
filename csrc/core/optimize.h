/* The arithmetic of a training step on lines of numbers: a step of AdamW, and the length and the
 * scaling that clip gradients. No number depends on how a line is divided among threads. */
#ifndef ATTN_CORE_OPTIMIZE_H
#define ATTN_CORE_OPTIMIZE_H

#include "core/array.h"
#include "core/tasks.h"

#include <stdint.h>

/* What all numbers of a step are multiplied by, or what is added to them. */
typedef struct {
    double new_mean, old_square, new_square, root, eps, rate, kept;
} attn_adamw_factors;

/* mean += (gradient - mean) * new_mean
 * square = square * old_square + gradient^2 * new_square
 * parameter = parameter * kept - mean / (sqrt(square) * root + eps) * rate,
 * each product, sum and quotient rounded. */
typedef struct {
    ptrdiff_t n;      /* numbers of each array */
    attn_dtype dtype; /* of all but stored: ATTN_F32 or ATTN_F64 */
    void *parameter, *mean, *square;
    const void *gradient;
    /* bfloat16, to which a float parameter is rounded; or NULL. Numbers that differ before the
     * step become the parameter's. */
    uint16_t *stored;
    attn_adamw_factors factors;
} attn_adamw_problem;

/* Cannot fail: it needs no memory. */
void attn_adamw(const attn_adamw_problem *, attn_call *);

/* Numbers of float, double or bfloat16. */
typedef struct {
    ptrdiff_t n;
    attn_dtype dtype;
    void *data;
} attn_line;

/* The sum of squares in double: in blocks of 8192, one after the other; within a block pairwise,
 * in NumPy's order. -1 when memory runs out, else 0. */
int attn_sum_of_squares(const attn_line *, double *sum, attn_call *);

/* Multiplies the numbers; those of bfloat16 by a float. Cannot fail. */
void attn_scale(const attn_line *, double factor, attn_call *);

double attn_line_work(ptrdiff_t n);

#endif
