/* Asks the caches for rows that will be wanted soon: all of them at once, in shares while
 * something is computed, or line by line among other instructions. */
#ifndef ATTN_KERNEL_OPERANDS_PREFETCH_H
#define ATTN_KERNEL_OPERANDS_PREFETCH_H

#include "core/array.h"
#include "kernel/sizes.h"

/* Rows of an array that are to be asked for. */
typedef struct {
    const char *at;
    ptrdiff_t row;   /* bytes from row to row */
    ptrdiff_t bytes; /* of a row */
    ptrdiff_t n_rows;
} prefetch;

/* n_columns of n_rows rows of an array from an address on; none of it unless the columns are
 * adjacent. */
static prefetch
prefetch_of(const attn_array *array, const char *at, ptrdiff_t n_columns,
            ptrdiff_t n_rows)
{
    bool adjacent =
        array->column_stride > 0 && array->column_stride <= (ptrdiff_t)sizeof(real);

    return (prefetch){.at = at,
                      .row = array->row_stride,
                      .bytes = n_columns * array->column_stride,
                      .n_rows = adjacent ? n_rows : 0};
}

/* Those of its rows that are due while some of n rows are computed, from i on. */
static INLINE prefetch
prefetch_slice(const prefetch *s, ptrdiff_t i, ptrdiff_t some, ptrdiff_t n)
{
    ptrdiff_t from = i * s->n_rows / n, to = least(i + some, n) * s->n_rows / n;

    return (prefetch){s->at + from * s->row, s->row, s->bytes, to - from};
}

/* Asks the second-level cache, for the first is too small, for rows first .. end - 1. */
static INLINE void
prefetch_rows(const prefetch *s, ptrdiff_t first, ptrdiff_t end)
{
    for (ptrdiff_t i = first; i < end; i++) {
        for (ptrdiff_t at = 0; at < s->bytes; at += CACHE_LINE) {
            __builtin_prefetch(s->at + i * s->row + at, 0, 2);
        }
    }
}

/* Asks the first-level cache for all rows. */
static INLINE void
prefetch_near(const prefetch *s)
{
    for (ptrdiff_t i = 0; i < s->n_rows; i++) {
        for (ptrdiff_t at = 0; at < s->bytes; at += CACHE_LINE) {
            __builtin_prefetch(s->at + i * s->row + at);
        }
    }
}

/* Asks for the line at a byte offset of each row, as prefetch_rows. */
static INLINE void
prefetch_line(const prefetch *s, ptrdiff_t offset)
{
    for (ptrdiff_t i = 0; offset < s->bytes && i < s->n_rows; i++) {
        __builtin_prefetch(s->at + i * s->row + offset, 0, 2);
    }
}

/* Asks the first-level cache alone for n lines. */
static INLINE void
prefetch_once(const char *at, const ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        __builtin_prefetch(at + i * CACHE_LINE, 0, 0);
    }
}

/* Reads a little of each of n cache lines. Vectors: on Zen 4 reading a byte of each, or
 * prefetching them, brings them at half the speed. */
static INLINE void
touch_lines(const char *at, const ptrdiff_t n)
{
    typedef float some __attribute__((vector_size(16), aligned(1), may_alias));

    for (ptrdiff_t i = 0; i < n; i++) {
        (void)*(const volatile some *)(const volatile void *)(at + i * CACHE_LINE);
    }
}

/* Rows that are asked for bit by bit: at each step the line `step` bytes behind the one before.
 * */
typedef struct {
    const char *at;
    ptrdiff_t step, bytes;          /* of a part, which is so many steps */
    ptrdiff_t row, row_bytes, left; /* of the row */
} trail;

/* Rows in n_parts parts of n_steps steps; if there are none, `other` again and again. */
static INLINE trail
trail_of(const prefetch *s, ptrdiff_t n_parts, ptrdiff_t n_steps, const char *other)
{
    if (s->n_rows <= 0 || s->bytes <= 0) {
        return (trail){.at = other};
    }
    ptrdiff_t step = (s->n_rows * s->bytes / n_parts + n_steps - 1) / n_steps;
    return (trail){s->at, step, step * n_steps, s->row, s->bytes, s->bytes};
}

static INLINE void
next_part(trail *s)
{
    s->at += s->bytes;
    s->left -= s->bytes;
    if (s->left <= 0) { /* what was beyond the row's end is not made up for */
        s->at += s->left - s->row_bytes + s->row;
        s->left = s->row_bytes;
    }
}

#endif
