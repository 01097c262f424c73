/* Operands of lines of memory side by side: a vector has the same operand of LANES lines. */
#ifndef ATTN_KERNEL_GEMM_COLUMNS_H
#define ATTN_KERNEL_GEMM_COLUMNS_H

#include "core/paths.h"
#include "kernel/operands/operand.h"

/* Not inlined: converting single numbers takes much code, and is rare. */
static NOINLINE void
convert_column(operand *lanes, const char *at, ptrdiff_t row, const storage kind)
{
    for (int i = 0; i < LANES; i++) {
        ONE_BY_ONE;
        lanes[i] = load_operand(at + i * row, kind);
    }
}

/* The operand at an address of each of LANES lines. */
static INLINE v_operand
load_column(const char *at, ptrdiff_t row, const storage kind)
{
    operand lanes[LANES];

    if (kind == AS_OPERANDS) {
        UNROLLED for (int i = 0; i < LANES; i++)
        {
            lanes[i] = load_operand(at + i * row, kind);
        }
    } else {
        convert_column(lanes, at, row, kind);
    }
    return v_load_operands(lanes);
}

/* x[t] = operand t of each of LANES lines, from an address on. */
static INLINE void
load_columns(v_operand x[LANES], const char *at, ptrdiff_t row, const storage kind)
{
#if LOADS_COLUMNS && TERMS == 1
    if (LANES == 8 && kind == AS_OPERANDS) {
        const char *second = at + 4 * row;
        const real *lines[LANES];
        __asm__("" : "+r"(at), "+r"(second)); /* or each line has an address */
        UNROLLED for (int i = 0; i < 4; i++)
        {
            lines[i] = (const real *)(const void *)(at + i * row);
            lines[i + 4] = (const real *)(const void *)(second + i * row);
        }
        v_load_columns(x, lines);
        return;
    }
#endif
#if LOADS_BF16_COLUMNS
    if (kind == AS_BF16) {
        attn_count_path(ATTN_PATH_BF16_COLUMNS);
        v_load_bf16_columns(x, at, row);
        return;
    }
#endif
    UNROLLED for (int i = 0; i < LANES; i++)
    {
        x[i] = load_operands(at + i * row, NULL, kind);
    }
    v_transpose_operands(x);
}

#endif
