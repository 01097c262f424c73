/* Operands that are reals, and how rows and weights become them. */
#ifndef ATTN_KERNEL_OPERANDS_REAL_H
#define ATTN_KERNEL_OPERANDS_REAL_H

#include "kernel/operands/convert.h"

typedef real operand;
typedef v_real v_operand;
#define OPERAND_DTYPE REAL_DTYPE

static INLINE v_operand
v_load_operands(const operand *from)
{
    return v_load(from);
}

static INLINE v_operand
v_set1_operand(operand x)
{
    return v_set1(x);
}

static INLINE void
v_transpose_operands(v_operand a[LANES])
{
    v_transpose(a);
}

/* sum + a * b */
static INLINE v_real
v_dot(v_operand a, v_operand b, v_real sum)
{
    return v_fma(a, b, sum);
}

/* LANES operands of a row; `second` is the row behind it, for AS_TWO_ROWS. */
static INLINE v_operand
load_operands(const char *from, const char *second, const storage kind)
{
    (void)second;
    switch (kind) {
    case AS_F16: return v_load_f16((const uint16_t *)(const void *)from);
    case AS_BF16: return v_load_bf16((const uint16_t *)(const void *)from);
    default: return v_load((const real *)(const void *)from);
    }
}

/* One operand of a row. */
static INLINE operand
load_operand(const char *from, const storage kind)
{
    return load_element(from, kind == AS_F16    ? ATTN_F16
                              : kind == AS_BF16 ? ATTN_BF16
                                                : REAL_DTYPE);
}

/* How the rows of key and value are read where they lie, if their columns are adjacent. */
static INLINE storage
key_storage(attn_dtype dtype)
{
    return dtype == ATTN_F16 ? AS_F16 : dtype == ATTN_BF16 ? AS_BF16 : AS_OPERANDS;
}

static INLINE storage
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
