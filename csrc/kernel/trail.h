/* What will be wanted soon, asked for among other instructions. */
#ifndef ATTN_KERNEL_TRAIL_H
#define ATTN_KERNEL_TRAIL_H

#include "kernel/prefetch.h"

/* Rows that are asked for bit by bit: at each step the line `step` bytes behind the one before. */
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
