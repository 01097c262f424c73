/* Normalization of rows. */
#ifndef ATTN_CORE_NORM_H
#define ATTN_CORE_NORM_H

#include "core/array.h"
#include "core/tasks.h"

#define ATTN_NORM_CHAINS 16 /* of sums over a row */

/* Scales rows to mean square 1, and mean 0 if they are centred, then by a weight. All
 * arrays are contiguous, in the arithmetic's dtype. Sums are 16 chains, of every 16th
 * number, added up pairwise. */
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
    void *moments; /* (2, rows) or NULL: what a row's numbers are reduced by, then
                             multiplied by; written, but read when going backwards */
} attn_norm_problem;

/* Backwards: gradients in the arithmetic's dtype, contiguous. Those of weight and bias are
 * sums over blocks of ATTN_TASK_ROWS rows, in ascending order, added up in that order. */
typedef struct {
    attn_norm_problem norm;  /* without residual and output */
    const void *grad_output; /* (rows, columns) */
    void *grad_input;        /* (rows, columns) */
    void *grad_weight;       /* (columns,) */
    void *grad_bias;         /* (columns,) or NULL */
    void *sums; /* (blocks, 2, columns rounded up to ATTN_NORM_CHAINS) scratch */
} attn_norm_vjp_problem;

typedef struct {
    /* Rows first_row .. first_row + n_rows - 1. */
    void (*run)(const attn_norm_problem *, ptrdiff_t first_row, ptrdiff_t n_rows);
    size_t (*vjp_workspace_size)(const attn_norm_vjp_problem *);
    /* The gradients of a block's rows, and its sums. */
    void (*run_vjp)(const attn_norm_vjp_problem *, ptrdiff_t block, void *workspace);
    /* Adds up the blocks' sums for columns first_column .. first_column + n - 1. */
    void (*add_blocks)(const attn_norm_vjp_problem *, ptrdiff_t first_column,
                       ptrdiff_t n);
} attn_norm_kernel;

/* How many blocks the rows make. */
static inline ptrdiff_t
attn_norm_blocks(const attn_norm_problem *p)
{
    return attn_divide_up(p->n_rows, ATTN_TASK_ROWS);
}

double attn_norm_work(const attn_norm_problem *); /* multiplications, roughly */

/* Cannot fail: it needs no memory. */
void attn_normalize(const attn_norm_problem *, attn_call *);

/* Sets `sums`. -1 when memory runs out, else 0. */
int attn_normalize_vjp(const attn_norm_vjp_problem *, attn_call *);

#endif
