/* Attention by plain loops in double precision. */
#ifndef ATTN_PLAIN_H
#define ATTN_PLAIN_H

#include "attention.h"

/* One row: output (Dv,), weights (Lk,) and the LSE. */
void plain_row(const attn_problem *, ptrdiff_t batch, ptrdiff_t head, ptrdiff_t i,
               double *output, double *weights, double *lse);

#endif
