/* What row form prefetches, group by group of keys and values. */
#ifndef ATTN_KERNEL_ATTENTION_ROW_FORM_PREFETCH_H
#define ATTN_KERNEL_ATTENTION_ROW_FORM_PREFETCH_H

#include "kernel/attention/block.h"
#include "kernel/attention/keys.h"

enum {
    GROUPS_AHEAD = 2, /* groups between prefetching rows and reading them */
    VALUES_AHEAD =
        4096, /* bytes from values that are read to those that are prefetched once */
    BURST_BYTES = 1 << 14, /* that the first-level cache holds beside everything else */
    EARLY_LINES = 32,      /* that are prefetched while nothing is read */
};

/* Does the task read a run of this array from one end to the other? */
static bool
is_read_in_order(const attn_array *array, ptrdiff_t dim)
{
    return array->row_stride == dim * array->column_stride;
}

/* Does it read them in order, with little to compute? Then the CPU prefetches on its own, and other
 * prefetches disturb it. */
static bool
is_stream(const work *w, const attn_array *array, ptrdiff_t dim)
{
    return w->rows.task->n_rows <= STREAM_ROWS && is_read_in_order(array, dim);
}

/* Is this array prefetched shortly before it is read? */
static bool
prefetches_once(const work *w, const attn_array *array, ptrdiff_t dim)
{
    return w->reads_once && is_read_in_order(array, dim);
}

/* Can n rows of an array be read in order at a time, to be read again from the first-level cache?
 */
static bool
fits_bursts(const attn_array *array, ptrdiff_t dim, ptrdiff_t n)
{
    return dim % LANES == 0 && is_read_in_order(array, dim) &&
           n * array->row_stride <= BURST_BYTES;
}

/* Are rows of this array, LANES keys or a group of values, read in order, line by line, before
 * they are read out of order? Then the CPU prefetches them on its own. */
static bool
reads_bursts(const work *w, const attn_array *array, ptrdiff_t dim)
{
    return w->reads_bursts &&
           fits_bursts(array, dim, array == &w->rows.p->key ? LANES : KEY_GROUP);
}

/* In bursts, prefetches the first lines of what is read next, unless `at` is NULL, before something
 * is computed that reads nothing from memory. */
static void
prefetch_early(const char *at)
{
    if (at != NULL) {
        prefetch_once(at, EARLY_LINES);
    }
}

/* The rows that are read GROUPS_AHEAD groups after group `step` of a block: its groups of keys come
 * first, then its groups of values, then the next block's keys. */
static prefetch
look_ahead(const work *w, const block *b, ptrdiff_t step)
{
    ptrdiff_t n_groups = (b->end - b->first + KEY_GROUP - 1) / KEY_GROUP;
    ptrdiff_t ahead = step + GROUPS_AHEAD;
    bool value = ahead >= n_groups && ahead < 2 * n_groups;
    ptrdiff_t first =
        b->first + (ahead - (ahead < n_groups ? 0 : n_groups)) * KEY_GROUP;

    if (!w->reads_ahead || first + KEY_GROUP > w->rows.to) {
        return (prefetch){.n_rows = 0};
    }
    key_run run = value ? values_of(&w->rows, first, KEY_GROUP)
                        : keys_of(&w->rows, first, KEY_GROUP);
    bool by_itself = is_stream(w, run.array, run.dim) ||
                     reads_bursts(w, run.array, run.dim) ||
                     (prefetches_once(w, run.array, run.dim) &&
                      !(HAS_UNIT && w->rows.task->n_rows > STREAM_ROWS));
    return by_itself ? (prefetch){.n_rows = 0} : run_prefetch(run);
}

/* Are keys and values prefetched as one stream, group by group, a block's keys and then its
 * values? One or two rows are done with a group before the next could come: they prefetch
 * values in the order of memory, and the next block's keys before the values. A matrix unit
 * reads values in another order. */
static bool
is_one_stream(const work *w)
{
    ptrdiff_t dim = w->rows.p->head_dim;

    return !HAS_UNIT && w->rows.task->n_rows > STREAM_ROWS &&
           dim == w->rows.p->value_dim && prefetches_once(w, &w->rows.p->key, dim) &&
           prefetches_once(w, &w->rows.p->value, dim);
}

/* The group of rows that is read after the keys at `first`, to be touched meanwhile;
 * `at` is NULL for none. CPUs do not prefetch LANES rows that are read side by side, to
 * be transposed. */
static key_run
next_in_stream(const work *w, const block *b, ptrdiff_t first)
{
    const attn_array *key = &w->rows.p->key;
    ptrdiff_t dim = w->rows.p->head_dim;

    if (!w->reads_ahead || reads_bursts(w, key, dim) ||
        !(is_stream(w, key, dim) || prefetches_once(w, key, dim))) {
        return (key_run){.at = NULL};
    }
    if (first + KEY_GROUP >= b->end && is_one_stream(w)) {
        return values_of(&w->rows, b->first, KEY_GROUP);
    }
    return first + 2 * KEY_GROUP <= w->rows.to
               ? keys_of(&w->rows, first + KEY_GROUP, KEY_GROUP)
               : (key_run){.at = NULL};
}

/* The address from which rows are prefetched while a group of values at `first` is
 * read; NULL for nothing. */
static INLINE const char *
next_after_values(const work *w, const block *b, ptrdiff_t first, const key_run *values)
{
    if (!is_one_stream(w)) {
        return prefetches_once(w, values->array, values->dim)
                   ? values->at + VALUES_AHEAD
                   : NULL;
    }
    if (first + KEY_GROUP < b->end) {
        return rest_of(*values, KEY_GROUP).at;
    }
    return b->end + KEY_GROUP <= w->rows.to ? keys_of(&w->rows, b->end, KEY_GROUP).at
                                            : NULL;
}

/* How the task brings the next group of keys into the caches. */
static INLINE touch_form
touch_form_of(const work *w)
{
    return w->reads_bursts                   ? READ_LINES
           : w->reads_once && w->keeps_lines ? PREFETCH_LINES
           : w->reads_once                   ? PREFETCH_LINES_ONCE
                                             : TOUCH_LINES;
}

static INLINE prefetch_goal
goal_of(const work *w)
{
    return !w->reads_once ? TO_SECOND : w->keeps_lines ? TO_ALL : TO_FIRST;
}

#endif
