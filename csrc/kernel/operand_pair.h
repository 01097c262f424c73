/* Operands that are pairs of bfloat16 numbers. */
#ifndef ATTN_KERNEL_OPERAND_PAIR_H
#define ATTN_KERNEL_OPERAND_PAIR_H

#include "core/array.h"
#include "kernel/storage.h"
#include <string.h>

/* The term of the lower dimension or key is in the lower half. Operands are read where
 * 16-bit elements lie, and packed where floats lay. */
typedef uint32_t operand __attribute__((may_alias, aligned(2)));
typedef v_pairs v_operand;
#define OPERAND_DTYPE ATTN_BF16

static INLINE v_operand
v_load_operands(const operand *from)
{
    return v_load_pairs(from);
}

static INLINE v_operand
v_set1_operand(operand x)
{
    return v_set1_pair(x);
}

static INLINE void
v_transpose_operands(v_operand a[LANES])
{
    v_transpose_pairs(a);
}

/* sum + the two products of each lane */
static INLINE v_real
v_dot(v_operand a, v_operand b, v_real sum)
{
    return v_dot_pairs(a, b, sum);
}

static INLINE v_operand
load_operands(const char *from, const char *second, const storage kind)
{
    if (kind == AS_TWO_ROWS) {
        return v_zip_bf16((const uint16_t *)(const void *)from,
                          (const uint16_t *)(const void *)second);
    }
    return v_load_pairs((const operand *)(const void *)from);
}

static INLINE operand
load_operand(const char *from, const storage kind)
{
    operand x;

    (void)kind;
    memcpy(&x, from, sizeof x);
    return x;
}

#endif
