/* What the core computes, by plain loops that share nothing with it but the problem. */
#ifndef ATTN_TESTS_PLAIN_H
#define ATTN_TESTS_PLAIN_H

#include "core/attention.h"
#include "core/rotary.h"

/* One row of attention in double precision: output (Dv,), weights (Lk,) and the LSE. */
void plain_row(const attn_problem *, ptrdiff_t batch, ptrdiff_t head, ptrdiff_t i,
               double *output, double *weights, double *lse);

/* One head of a token, (D,), in the arithmetic's precision and order: these very bits. */
void plain_rotary(const attn_rotary_problem *, ptrdiff_t batch, ptrdiff_t head,
                  ptrdiff_t token, double *output);

#endif
