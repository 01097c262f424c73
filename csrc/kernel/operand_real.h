/* Operands that are reals. */
#ifndef ATTN_KERNEL_OPERAND_REAL_H
#define ATTN_KERNEL_OPERAND_REAL_H

#include "kernel/convert.h"
#include "kernel/storage.h"

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

#endif
