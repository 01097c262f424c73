/* Attention with its projections, in one run. */
#ifndef ATTN_CORE_LAYER_H
#define ATTN_CORE_LAYER_H

#include "core/attention.h"
#include "core/linear.h"
#include "core/rotary.h"

/* Steps in this order; NULL for none. The output arrays of one are inputs of the next. */
typedef struct {
    attn_linear_problem *projections[3]; /* for queries, keys and values */
    const attn_rotary_problem *rotary[3];
    const attn_problem *attention;
    const attn_rotary_problem *results; /* of the heads, in place */
    attn_linear_problem *output;
} attn_layer_problem;

double attn_layer_work(const attn_layer_problem *);

/* -1 when memory runs out, else 0. */
int attn_layer(const attn_layer_problem *, attn_call *);

#endif
