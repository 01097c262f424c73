/* What the products multiply. An operand is a real; or, where a kernel sets TERMS to 2, a
 * pair of bfloat16 numbers whose two products one instruction adds to a float. Rows of
 * keys are cut into operands along the dimensions, weights and values along the keys. */
#ifndef ATTN_KERNEL_OPERANDS_OPERAND_H
#define ATTN_KERNEL_OPERANDS_OPERAND_H

#include "kernel/sizes.h"
#include <stddef.h>

#if TERMS == 1
#include "kernel/operands/real.h"
#else
#include "kernel/operands/pair.h"
#endif

/* Where prefetches bring lines: to the second-level cache, to the first and those behind it, or to
 * the first alone, so that nothing leaves the others. */
typedef enum { TO_SECOND, TO_ALL, TO_FIRST } prefetch_goal;

/* Prefetches n_vec vectors of a row; where two rows make one, also of the other, which is
 * `second_row` bytes on. Prefetches to the second-level cache are unrolled: with data in the caches a
 * jump for each line would slow products down. */
static INLINE void
prefetch_operands(const char *at, ptrdiff_t second_row, const int n_vec,
                  const storage kind, prefetch_goal goal)
{
    const ptrdiff_t bytes = n_vec * LANES * storage_bytes(kind);
    const char *end = at + bytes;

    if (goal == TO_SECOND) {
        UNROLLED for (ptrdiff_t i = 0; i < bytes; i += CACHE_LINE)
        {
            __builtin_prefetch(at + i, 0, 2);
            if (storage_rows(kind) > 1) {
                __builtin_prefetch(at + second_row + i, 0, 2);
            }
        }
        return;
    }
    for (; goal == TO_FIRST && at < end; at += CACHE_LINE) {
        __builtin_prefetch(at, 0, 0);
        if (storage_rows(kind) > 1) {
            __builtin_prefetch(at + second_row, 0, 0);
        }
    }
    for (; goal == TO_ALL && at < end; at += CACHE_LINE) {
        __builtin_prefetch(at);
        if (storage_rows(kind) > 1) {
            __builtin_prefetch(at + second_row);
        }
    }
}

#endif
