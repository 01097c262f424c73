/* Normalization of rows. */
#ifndef ATTN_CORE_NORM_H
#define ATTN_CORE_NORM_H

#include "core/array.h"
#include "core/tasks.h"

/* Rows brought to mean square 1, and mean 0 if they are centred, then scaled. All arrays are
 * contiguous, in the arithmetic's dtype. Sums are 16 chains, of every 16th number, added
 * up pairwise. */
typedef struct {
    ptrdiff_t n_rows;
    ptrdiff_t n_columns;
    attn_dtype arithmetic; /* ATTN_F32 or ATTN_F64 */
    bool centre;
    double eps;           /* added to the variance */
    const void *input;    /* (rows, columns) */
    const void *residual; /* (rows, columns) to add first, or NULL */
    const void *weight;   /* (columns,) */
    const void *bias;     /* (columns,) or NULL */
    void *output;         /* (rows, columns) */
} attn_norm_problem;

typedef struct {
    /* Rows first_row .. first_row + n_rows - 1. */
    void (*run)(const attn_norm_problem *, ptrdiff_t first_row, ptrdiff_t n_rows);
} attn_norm_kernel;

double attn_norm_work(const attn_norm_problem *); /* multiplications, roughly */

/* Cannot fail: it needs no memory. */
void attn_normalize(const attn_norm_problem *, attn_call *);

#endif
