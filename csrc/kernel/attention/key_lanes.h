/* Row form: vectors of keys, LANES of them side by side. */
#ifndef ATTN_KERNEL_ATTENTION_KEY_LANES_H
#define ATTN_KERNEL_ATTENTION_KEY_LANES_H

#include "kernel/attention/stream.h"

/* Where keys lie, and what is read or announced meanwhile. */
typedef struct {
    const char *at;
    ptrdiff_t row;     /* bytes from key to key */
    const char *touch; /* as many keys, in order; or NULL */
    prefetch next;
} key_lanes;

/* Conversions of single numbers are long, and rest columns of such keys rare. */
static NOINLINE void
convert_column(operand *lanes, const char *at, ptrdiff_t row, const storage kind)
{
    for (int i = 0; i < LANES; i++) {
        ONE_BY_ONE;
        lanes[i] = load_operand(at + i * row, kind);
    }
}

/* The operand at an address of each of LANES keys. */
static INLINE v_operand
load_column(const char *at, ptrdiff_t row, const storage kind)
{
    operand lanes[LANES];

    if (kind == AS_OPERANDS) {
        for (int i = 0; i < LANES; i++) {
            lanes[i] = load_operand(at + i * row, kind);
        }
    } else {
        convert_column(lanes, at, row, kind);
    }
    return v_load_operands(lanes);
}

#endif
