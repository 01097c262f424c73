/* Rows and weights brought into operands that are reals. */
#ifndef ATTN_KERNEL_STAGE_REAL_H
#define ATTN_KERNEL_STAGE_REAL_H

#include "kernel/operand_real.h"

/* How the rows of key and value are read where they lie, if their columns are adjacent. */
static storage
key_storage(attn_dtype dtype)
{
    return dtype == ATTN_F16 ? AS_F16 : dtype == ATTN_BF16 ? AS_BF16 : AS_OPERANDS;
}

static storage
value_storage(attn_dtype dtype)
{
    return key_storage(dtype);
}

/* Elements from .. from + n - 1 of a row, stride bytes apart, as operands. */
static void
stage_row(operand *to, const char *from, ptrdiff_t stride, ptrdiff_t n,
          attn_dtype dtype)
{
    load_row(to, from, stride, n, dtype);
}

/* TERMS rows, the second one NULL if there is none, as one row of operands. */
static void
stage_rows(operand *to, const char *first, const char *second, ptrdiff_t stride,
           ptrdiff_t n, attn_dtype dtype)
{
    (void)second;
    load_row(to, first, stride, n, dtype);
}

/* Weights, LANES of them for each of n keys, whole operands, key_step reals apart: as operands,
 * in place. */
static INLINE void
pack_weights(real *weights, ptrdiff_t n, ptrdiff_t key_step)
{
    (void)weights, (void)n, (void)key_step;
}

/* Likewise n weights of one row, from k on; n is rounded up to whole vectors. */
static INLINE void
pack_row_weights(real *weights, ptrdiff_t k, ptrdiff_t n)
{
    (void)weights, (void)k, (void)n;
}

/* The operand with 0 for the terms whose bit is not set. */
static INLINE operand
keep_terms(operand x, uint64_t bits)
{
    return bits & 1 ? x : 0;
}

/* What the products of queries with keys are yet to be multiplied by. */
static real
pending_scale(real scale)
{
    (void)scale;
    return 1;
}

/* Multiplies a query row by the rest of the scale. */
static void
scale_row(operand *row, ptrdiff_t n, real scale)
{
    for (ptrdiff_t k = 0; k < n; k++) {
        row[k] *= scale;
    }
}

#endif
