/* THE block of keys and values at position j: where it lies in memory, and what of it is
 * prefetched. */
#ifndef ATTN_KERNEL_ATTENTION_KEYS_H
#define ATTN_KERNEL_ATTENTION_KEYS_H

#include "kernel/attention/task.h"
#include "kernel/operands/prefetch.h"

enum {
    NEAR_BYTES = 1 << 20 /* of keys and values that stay in the second-level cache */
};

/* Will keys and values come from beyond the second-level cache? Prefetching what is there
 * already costs up to 20 %; not prefetching what is not, half of the speed (benchmarks, group
 * decode). */
static bool
is_far(const attn_problem *p)
{
    double row = (double)(p->head_dim * p->key.column_stride) +
                 (double)(p->value_dim * p->value.column_stride);
    double n_keys = p->key_starts == NULL ? (double)p->batch.n * (double)p->n_keys
                                          : (double)p->key_starts[p->batch.n];

    return n_keys * (double)p->n_kv_heads * row > NEAR_BYTES;
}

/* The first column of the key, or the value, at position j. */
static const char *
key_at(const work *w, ptrdiff_t j)
{
    return w->task->key + j * w->p->key.row_stride;
}

static const char *
value_at(const work *w, ptrdiff_t j)
{
    return w->task->value + j * w->p->value.row_stride;
}

/* The keys, or the values, of the block at `first`, if they are to be prefetched and were not
 * yet. */
static prefetch
block_prefetch(const work *w, ptrdiff_t first, bool value)
{
    ptrdiff_t n = least(w->to - first, ATTN_BLOCK);

    if (!w->reads_ahead || (value && first == w->values_prefetched)) {
        return (prefetch){.n_rows = 0};
    }
    return value ? prefetch_of(&w->p->value, value_at(w, first), w->p->value_dim, n)
                 : prefetch_of(&w->p->key, key_at(w, first), w->p->head_dim, n);
}

/* The first keys, or values, of the next head. */
static prefetch
next_head_prefetch(const work *w, bool value)
{
    const attn_problem *p = w->p;
    const attn_array *array = value ? &p->value : &p->key;
    const char *base = value ? value_at(w, 0) : key_at(w, 0);

    return prefetch_of(array, base + array->head_stride,
                       value ? p->value_dim : p->head_dim,
                       least(p->n_keys, ATTN_BLOCK));
}

/* What comes after the keys, or the values, of a block that ends before `end`: the next block's,
 * or, behind the last one, the next head's. */
static prefetch
next_prefetch(const work *w, ptrdiff_t end, bool value)
{
    if (end < w->to) {
        return block_prefetch(w, end, value);
    }
    return w->ends_head ? next_head_prefetch(w, value) : (prefetch){.n_rows = 0};
}

#endif
