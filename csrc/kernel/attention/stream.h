/* What row form asks for ahead, group by group of keys and values. */
#ifndef ATTN_KERNEL_ATTENTION_STREAM_H
#define ATTN_KERNEL_ATTENTION_STREAM_H

#include "kernel/attention/block.h"
#include "kernel/attention/keys.h"

enum {
    GROUPS_AHEAD = 2,    /* how far reading is announced to the cache */
    VALUES_AHEAD = 4096, /* likewise, in bytes, of what is asked for once */
    STREAM_ROWS = 2,     /* with so few, what is read in order is not announced */
};

/* Does the task read this array from one end to the other? */
static bool
is_read_in_order(const attn_array *array, ptrdiff_t dim)
{
    return array->row_stride == dim * array->column_stride;
}

/* And with little to compute? Then the CPU looks ahead on its own, and announcing disturbs
 * it. */
static bool
is_stream(const work *w, const attn_array *array, ptrdiff_t dim)
{
    return w->task->n_rows <= STREAM_ROWS && is_read_in_order(array, dim);
}

/* Is this array asked for shortly before it is read, the first-level cache alone? */
static bool
asks_once(const work *w, const attn_array *array, ptrdiff_t dim)
{
    return w->reads_once && is_read_in_order(array, dim);
}

/* What is wanted GROUPS_AHEAD groups after group `step` of a block, where its keys come
 * first, then its values, then the next block's keys. */
static prefetch
look_ahead(const work *w, const block *b, ptrdiff_t step)
{
    const attn_problem *p = w->p;
    ptrdiff_t n_groups = (b->end - b->first + KEY_GROUP - 1) / KEY_GROUP;
    ptrdiff_t ahead = step + GROUPS_AHEAD;
    bool value = ahead >= n_groups && ahead < 2 * n_groups;
    const attn_array *array = value ? &p->value : &p->key;
    ptrdiff_t dim = value ? p->value_dim : p->head_dim;
    ptrdiff_t first =
        b->first + (ahead - (ahead < n_groups ? 0 : n_groups)) * KEY_GROUP;

    if (!w->reads_ahead || first + KEY_GROUP > w->to || is_stream(w, array, dim) ||
        asks_once(w, array, dim)) {
        return (prefetch){.n_rows = 0};
    }
    return prefetch_of(array, value ? value_at(w, first) : key_at(w, first), dim,
                       KEY_GROUP);
}

/* The group of keys after the one at `first`, if it is to be touched meanwhile: for reading
 * LANES rows side by side, to transpose them, is no order that a CPU looks ahead in. */
static const char *
next_in_stream(const work *w, ptrdiff_t first)
{
    const attn_array *key = &w->p->key;
    bool there = w->reads_ahead && first + 2 * KEY_GROUP <= w->to;
    bool wanted =
        is_stream(w, key, w->p->head_dim) || asks_once(w, key, w->p->head_dim);

    return there && wanted ? key_at(w, first + KEY_GROUP) : NULL;
}

/* Lets n cache lines of that group come. For more rows than a stream's there are some only where
 * they are asked for once, which the compiler is told. */
static INLINE void
touch(const work *w, const char *at, const ptrdiff_t n, const int rows)
{
    if (rows > STREAM_ROWS || w->reads_once) {
        prefetch_once(at, n);
    } else {
        touch_lines(at, n);
    }
}

#endif
