/* What products of bytes prefetch, in both forms and on every unit. */
#ifndef ATTN_KERNEL_BYTES_PREFETCH_H
#define ATTN_KERNEL_BYTES_PREFETCH_H

#include "core/bytes.h"

enum { CACHE_LINE = 64 /* bytes */ };

/* Prefetches the row of the next rows that corresponds to row k: a whole block ahead, so that
 * memory is busy while scores become weights. */
static INLINE void
prefetch_after(const attn_byte_rows *b, ptrdiff_t k)
{
    for (ptrdiff_t d = 0; b->next != NULL && d < b->dim; d += CACHE_LINE) {
        __builtin_prefetch(b->next + k * b->row + d, 0, 2);
    }
}

#endif
