/* Inputs and results that few calls of attention have. The problem points to each, or has NULL
 * where there is none. Statistics are in statistics.h. */
#ifndef ATTN_CORE_EXTRAS_H
#define ATTN_CORE_EXTRAS_H

#include "core/array.h"

/* Where packed sequences begin; then there is one batch axis. */
typedef struct {
    const int64_t *queries; /* (B + 1,) of query, output and lse, or NULL */
    const int64_t *keys;    /* (B + 1,) of key and value, or NULL */
} attn_packed;

/* As attn_packed_start takes them. */
static inline const int64_t *
attn_query_starts(const attn_packed *packed)
{
    return packed == NULL ? NULL : packed->queries;
}

static inline const int64_t *
attn_key_starts(const attn_packed *packed)
{
    return packed == NULL ? NULL : packed->keys;
}

/* Keys and values that lie in pages, as a cache that grows by pages keeps them; their arrays
 * have no batch axes, but pages, (pages, Hk, ATTN_BLOCK, D), and describe page 0. A page holds
 * ATTN_BLOCK keys, those from a multiple of ATTN_BLOCK on. The kernel takes keys in blocks at
 * the same positions, so that each block lies in one page. */
typedef struct {
    const int64_t *table; /* (B, n) the numbers of a batch's pages */
    ptrdiff_t n;          /* pages of a batch: at least Lk / ATTN_BLOCK, rounded up */
    ptrdiff_t key_stride; /* bytes from page to page */
    ptrdiff_t value_stride;
    ptrdiff_t key_scale_stride,
        value_scale_stride; /* of scales (pages, Hk, ATTN_BLOCK) */
} attn_pages;

/* The number of the page with a batch's key at a position. */
static inline ptrdiff_t
attn_page_at(const attn_pages *pages, ptrdiff_t b, ptrdiff_t position)
{
    return (ptrdiff_t)pages->table[b * pages->n + position / ATTN_BLOCK];
}

/* The weights, where they are returned. */
typedef struct {
    attn_array array; /* (B, H, Lq, Lk) zeroed */
    /* (Hk,) which group of heads in the array has the weights of a kv head, < 0: none; NULL: all
     * groups are there, in order. */
    const int64_t *groups;
} attn_weights;

/* What a call over a part of the keys leaves for another one, over later keys. Each (B, H, Lq,
 * Dv + 2) in the arithmetic's dtype, one row in one piece: its maximum and sum, then its output
 * before it is divided by the sum. */
typedef struct {
    attn_array before; /* what the call over the keys before has left, or none */
    attn_array after;  /* where to leave it, instead of results, or none */
} attn_partial;

#endif
