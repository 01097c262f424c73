/* Where keys and values lie, in runs, and their prefetches. Only this file turns a key's
 * position into an address: functions that read keys or values get a run and walk it. A new
 * place for them is added here, and so is what each key brings along, such as a scale. */
#ifndef ATTN_KERNEL_ATTENTION_KEYS_H
#define ATTN_KERNEL_ATTENTION_KEYS_H

#include "kernel/attention/task.h"
#include "kernel/operands/convert.h"
#include "kernel/operands/prefetch.h"
#include <assert.h>

/* Bytes of keys and values, up to which they stay in the second-level cache, and beyond which they
 * come from memory in part, or as a whole. */
enum { NEAR_BYTES = 1 << 20, PARTLY_FAR_BYTES = 8 << 20, FAR_BYTES = 16 << 20 };

/* Of a key and its value. */
static double
row_bytes(const attn_problem *p)
{
    return (double)(p->head_dim * p->key.column_stride) +
           (double)(p->value_dim * p->value.column_stride);
}

/* Of all keys and values; cold ones are as if they were more than any cache holds. */
static double
key_bytes(const attn_problem *p)
{
    if (p->is_cold) {
        return INFINITY;
    }
    double n_keys = attn_key_starts(p->packed) == NULL
                        ? (double)p->batch.n * (double)p->n_keys
                        : (double)attn_key_starts(p->packed)[p->batch.n];

    return n_keys * (double)p->n_kv_heads * row_bytes(p);
}

/* Do keys and values exceed the second-level cache? Prefetching data that is already
 * there costs up to 20 %, not prefetching distant data half of the speed (benchmarks,
 * group decode). */
static bool
is_far(const attn_problem *p)
{
    return key_bytes(p) > (double)NEAR_BYTES;
}

/* Do those of a head? Then a task finds nothing there of what another has read, unless that has
 * made tiles of it. */
static bool
has_far_heads(const attn_problem *p)
{
    return !HAS_UNIT && !are_integers(&p->key) &&
           (double)p->n_keys * row_bytes(p) > (double)NEAR_BYTES;
}

/* Rows of keys, or of values, that lie array->row_stride bytes apart. All are of one block,
 * which lies in one piece. */
typedef struct {
    const attn_array *array; /* how rows and columns are stored */
    ptrdiff_t dim;           /* columns */
    const char *at;          /* the first row, from its first column on */
    ptrdiff_t n;             /* rows */
} key_run;

/* Bytes from key 0, or from page 0, to the first of n keys of one block, in an array whose pages
 * are page_stride bytes apart. */
static ptrdiff_t
place_of_key(const task_rows *t, ptrdiff_t first, ptrdiff_t n, ptrdiff_t row_stride,
             ptrdiff_t page_stride)
{
    const attn_pages *pages = t->p->pages;

    assert(n <= ATTN_BLOCK - first % ATTN_BLOCK);
    if (pages == NULL || n <= 0) {
        return first * row_stride;
    }
    return attn_page_at(pages, t->task->batch, first) * page_stride +
           first % ATTN_BLOCK * row_stride;
}

/* The run of keys first .. first + n - 1, of one block. */
static INLINE key_run
keys_of(const task_rows *t, ptrdiff_t first, ptrdiff_t n)
{
    const attn_problem *p = t->p;
    ptrdiff_t page = p->pages == NULL ? 0 : p->pages->key_stride;
    ptrdiff_t place = place_of_key(t, first, n, p->key.row_stride, page);

    return (key_run){&p->key, p->head_dim, t->task->key + place, n};
}

/* The run of their values. */
static INLINE key_run
values_of(const task_rows *t, ptrdiff_t first, ptrdiff_t n)
{
    const attn_problem *p = t->p;
    ptrdiff_t page = p->pages == NULL ? 0 : p->pages->value_stride;
    ptrdiff_t place = place_of_key(t, first, n, p->value.row_stride, page);

    return (key_run){&p->value, p->value_dim, t->task->value + place, n};
}

/* Loads the scales of keys, or of values, first .. first + n - 1 of one block, and zeros up to
 * whole vectors. */
static NOINLINE void
load_scales(const task_rows *t, bool value, ptrdiff_t first, ptrdiff_t n, real *to)
{
    const attn_array *scales = value ? &t->p->value_scale : &t->p->key_scale;
    const char *at = value ? t->task->value_scale : t->task->key_scale;

    const attn_pages *pages = t->p->pages;
    ptrdiff_t page = pages == NULL ? 0
                     : value       ? pages->value_scale_stride
                                   : pages->key_scale_stride;

    load_row(to, at + place_of_key(t, first, n, scales->row_stride, page),
             scales->row_stride, n, scales->dtype);
    memset(to + n, 0, (size_t)(round_up(n, LANES) - n) * sizeof(real));
}

/* The run's rows from `first` on. */
static key_run
rest_of(key_run run, ptrdiff_t first)
{
    run.at += first * run.array->row_stride;
    run.n -= first;
    return run;
}

static prefetch
run_prefetch(key_run run)
{
    return prefetch_of(run.array, run.at, run.dim, run.n);
}

/* The keys, or the values, of the block at `first`; empty if they need no prefetch or
 * had one. */
static prefetch
block_prefetch(const work *w, ptrdiff_t first, bool value)
{
    ptrdiff_t n = least(w->rows.to - first, ATTN_BLOCK);

    if (!w->reads_ahead || (value && first == w->values_prefetched)) {
        return (prefetch){.n_rows = 0};
    }
    return run_prefetch(value ? values_of(&w->rows, first, n)
                              : keys_of(&w->rows, first, n));
}

/* The first keys, or values, of the next head. */
static prefetch
next_head_prefetch(const task_rows *t, bool value)
{
    ptrdiff_t n = least(t->p->n_keys, ATTN_BLOCK);
    key_run run = value ? values_of(t, 0, n) : keys_of(t, 0, n);

    run.at += run.array->head_stride;
    return run_prefetch(run);
}

/* What follows the keys, or the values, of a block that ends before `end`: those of the
 * next block or, behind the last one, of the next head. */
static prefetch
next_prefetch(const work *w, ptrdiff_t end, bool value)
{
    if (end < w->rows.to) {
        return block_prefetch(w, end, value);
    }
    return w->ends_head ? next_head_prefetch(&w->rows, value) : (prefetch){.n_rows = 0};
}

/* Has the block at `first` a place among n that are kept, for other tasks of the head? Begins anew
 * with each head. */
static bool
has_place(work *w, ptrdiff_t first, ptrdiff_t n)
{
    const attn_problem *p = w->rows.p;
    const attn_task *task = w->rows.task;

    if (first / ATTN_BLOCK >= n || p->group * task->n_queries <= p->task_rows) {
        return false;
    }
    if (w->kept.key != task->key || w->kept.value != task->value ||
        w->kept.batch != task->batch) {
        w->kept =
            (kept_blocks){.key = task->key, .value = task->value, .batch = task->batch};
    }
    return true;
}

/* How many keys a kept block has: all that any task of the head may see. */
static ptrdiff_t
keys_to_keep(const work *w, ptrdiff_t first)
{
    return least((ptrdiff_t)w->rows.task->kv_length - first, ATTN_BLOCK);
}

#endif
