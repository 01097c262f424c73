/* Prefetches rows that will be read soon: all of them at once, in shares while something is
 * computed, or line by line among other instructions. */
#ifndef ATTN_KERNEL_OPERANDS_PREFETCH_H
#define ATTN_KERNEL_OPERANDS_PREFETCH_H

#include "core/array.h"
#include "kernel/sizes.h"

/* Rows of an array to prefetch. */
typedef struct {
    const char *at;
    ptrdiff_t row;   /* bytes from row to row */
    ptrdiff_t bytes; /* of a row */
    ptrdiff_t n_rows;
} prefetch;

/* What whole panels of a product prefetch: with each step the line at `at`, which then moves
 * `step` bytes, and `panel` bytes from panel to panel, for n_panels of them. */
typedef struct {
    const char *at;
    ptrdiff_t step, panel, n_panels;
} step_prefetch;

/* n_columns columns of n_rows rows of an array from an address on; no rows unless the columns
 * are adjacent. */
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

/* From one address to another, of any array. */
static INLINE ptrdiff_t
bytes_between(const char *from, const char *to)
{
    return (ptrdiff_t)((uintptr_t)to - (uintptr_t)from);
}

/* What to prefetch beside steps i .. i + some - 1 of n: their share of the rows. */
static INLINE prefetch
prefetch_slice(const prefetch *s, ptrdiff_t i, ptrdiff_t some, ptrdiff_t n)
{
    ptrdiff_t from = i * s->n_rows / n, to = least(i + some, n) * s->n_rows / n;

    return (prefetch){s->at + from * s->row, s->row, s->bytes, to - from};
}

/* Prefetches rows first .. end - 1 to the second-level cache, since the first is too small. */
static INLINE void
prefetch_rows(const prefetch *s, ptrdiff_t first, ptrdiff_t end)
{
    for (ptrdiff_t i = first; i < end; i++) {
        for (ptrdiff_t at = 0; at < s->bytes; at += CACHE_LINE) {
            __builtin_prefetch(s->at + i * s->row + at, 0, 2);
        }
    }
}

/* Prefetches all rows to the first-level cache. */
static INLINE void
prefetch_near(const prefetch *s)
{
    for (ptrdiff_t i = 0; i < s->n_rows; i++) {
        for (ptrdiff_t at = 0; at < s->bytes; at += CACHE_LINE) {
            __builtin_prefetch(s->at + i * s->row + at);
        }
    }
}

/* Prefetches the line at a byte offset of each row, as prefetch_rows. */
static INLINE void
prefetch_line(const prefetch *s, ptrdiff_t offset)
{
    for (ptrdiff_t i = 0; offset < s->bytes && i < s->n_rows; i++) {
        __builtin_prefetch(s->at + i * s->row + offset, 0, 2);
    }
}

/* Prefetches n lines to the first-level cache alone. */
static INLINE void
prefetch_once(const char *at, const ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        __builtin_prefetch(at + i * CACHE_LINE, 0, 0);
    }
}

/* Prefetches n lines to all caches. */
static INLINE void
prefetch_lines_near(const char *at, const ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        __builtin_prefetch(at + i * CACHE_LINE);
    }
}

/* Reads the first 16 bytes of each of n cache lines. On Zen 4 reading a byte of each, or prefetching
 * them, brings them at half the speed. */
static INLINE void
touch_lines(const char *at, const ptrdiff_t n)
{
    typedef float some __attribute__((vector_size(16), aligned(1), may_alias));

    for (ptrdiff_t i = 0; i < n; i++) {
        (void)*(const volatile some *)(const volatile void *)(at + i * CACHE_LINE);
    }
}

/* Reads a whole vector of each of n lines: on Zen 4 1.1 times as fast as touch_lines where `at` is not
 * the beginning of a cache line. */
static INLINE void
read_lines(const char *at, const ptrdiff_t n)
{
    typedef v_real some __attribute__((aligned(1), may_alias));

    for (ptrdiff_t i = 0; i < n; i++) {
        (void)*(const volatile some *)(const volatile void *)(at + i * CACHE_LINE);
    }
}

/* Up to so many rows are computed so fast that memory is read in order, which CPUs prefetch. */
enum { STREAM_ROWS = 2 };

/* Which of these functions brings lines that are read soon. More rows than STREAM_ROWS never touch
 * lines. */
typedef enum {
    READ_LINES,
    PREFETCH_LINES,
    PREFETCH_LINES_ONCE,
    TOUCH_LINES
} touch_form;

static INLINE void
touch(const char *at, const ptrdiff_t n, touch_form form, const int rows)
{
    if (form == READ_LINES) {
        read_lines(at, n);
    } else if (form == PREFETCH_LINES) {
        prefetch_lines_near(at, n);
    } else if (rows > STREAM_ROWS || form == PREFETCH_LINES_ONCE) {
        prefetch_once(at, n);
    } else {
        touch_lines(at, n);
    }
}

/* Rows that are prefetched a line at a time: each step's line is `step` bytes behind the last. */
typedef struct {
    const char *at;
    ptrdiff_t step, bytes;          /* from step to step, and of a part */
    ptrdiff_t row, row_bytes, left; /* of the row */
} line_prefetch;

/* Rows in n_parts parts of n_steps steps. If there are none, each step prefetches `other`. */
static INLINE line_prefetch
line_prefetch_of(const prefetch *s, ptrdiff_t n_parts, ptrdiff_t n_steps,
                 const char *other)
{
    if (s->n_rows <= 0 || s->bytes <= 0) {
        return (line_prefetch){.at = other};
    }
    ptrdiff_t step = (s->n_rows * s->bytes / n_parts + n_steps - 1) / n_steps;
    return (line_prefetch){s->at, step, step * n_steps, s->row, s->bytes, s->bytes};
}

/* Moves on to the next part, whose first step may begin in the middle of a row. */
static INLINE void
next_part(line_prefetch *s)
{
    s->at += s->bytes;
    s->left -= s->bytes;
    if (s->left <= 0) {
        s->at += s->left - s->row_bytes + s->row;
        s->left = s->row_bytes;
    }
}

#endif
