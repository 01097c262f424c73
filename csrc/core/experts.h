/* Feed-forward networks, each for some rows, whose results are added up. */
#ifndef ATTN_CORE_EXPERTS_H
#define ATTN_CORE_EXPERTS_H

#include "core/linear.h"

/* total[rows[i]] += weights[i] * result i, each product and each sum rounded, in the order of
 * the networks, where the results of all networks are in a line. Those of a network are
 * last(first(x)), or with gates last(gate(x)), whose `times` is first(x). */
typedef struct {
    int n;                             /* of networks */
    attn_linear_problem *const *first; /* (n,) of one batch, as all are */
    attn_linear_problem *const *gate;  /* (n,), alike; or NULL */
    attn_linear_problem *const *last;  /* (n,), whose outputs are contiguous float32 */
    const int64_t *rows;               /* no row of a network twice */
    const float *weights;
    float *total; /* (any, n_columns) */
    ptrdiff_t n_columns;
} attn_experts_problem;

double attn_experts_work(const attn_experts_problem *);

/* -1 when memory runs out, else 0. */
int attn_experts(const attn_experts_problem *, attn_call *);

#endif
