/* A block of keys: which of them rows may see, and its bias. */
#ifndef ATTN_KERNEL_ATTENTION_BLOCK_H
#define ATTN_KERNEL_ATTENTION_BLOCK_H

#include "kernel/attention/dropout.h"
#include "kernel/attention/rows.h"
#include "kernel/math/exp.h"
#include "kernel/operands/convert.h"

/* The block of keys first .. end - 1 at an absolute, constant position. */
typedef struct {
    ptrdiff_t first, end;
    attn_coverage coverage;
} block;

/* The block's bias of row r of the task: where it lies, if it can be read there, or where
 * load_bias brings it. Row form reads whole vectors, so that it has a copy always. */
static const real *
bias_row(const work *w, const block *b, ptrdiff_t r)
{
    const attn_array *bias = &w->p->bias;

    if (w->row_form || !is_plain(bias, w->p->n_keys)) {
        return w->bias + r * ATTN_BLOCK;
    }
    return (const real *)(const void *)(w->bias_rows[r] +
                                        b->first * (ptrdiff_t)sizeof(real));
}

/* Bit k is set where row[k] is -inf, for k < n <= 64. */
static uint64_t
find_minus_inf(const real *row, ptrdiff_t n)
{
    uint64_t bits = 0;
    ptrdiff_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        bits |= v_bits_of(v_less(v_load(row + k), v_set1(-REAL_MAX))) << k;
    }
    for (; k < n; k++) {
        ONE_BY_ONE;
        bits |= (uint64_t)(row[k] < -REAL_MAX) << k;
    }
    return bits;
}

/* Loads the block's bias for each row. A key with bias -inf is one the row may not see. */
static void
load_bias(work *w, block *b)
{
    const attn_array *bias = &w->p->bias;
    ptrdiff_t n_keys = b->end - b->first;

    if (b->coverage == ATTN_SEE_ALL) {
        memset(w->see, 0xff, sizeof w->see);
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        const real *row = bias_row(w, b, r);
        real *copy = w->bias + r * ATTN_BLOCK;
        if (row == copy) {
            load_row(copy, w->bias_rows[r] + b->first * bias->column_stride,
                     bias->column_stride, n_keys, bias->dtype);
            memset(copy + n_keys, 0,
                   (size_t)(round_up(n_keys, LANES) - n_keys) * sizeof(real));
        }
        for (ptrdiff_t k = 0; k < n_keys; k += 64) {
            uint64_t masked = find_minus_inf(row + k, least(n_keys - k, 64));
            if (masked != 0) {
                w->see[r][k / 64] &= ~masked;
                b->coverage = ATTN_SEE_SOME;
            }
        }
    }
}

/* The bias of the block at `first` for the task's rows of one head. */
static prefetch
bias_prefetch(const work *w, ptrdiff_t first)
{
    const attn_array *bias = &w->p->bias;
    ptrdiff_t n_keys = least(w->to - first, ATTN_BLOCK);
    ptrdiff_t n_queries = w->task->n_queries;

    if (w->task->bias == NULL || n_keys <= 0) {
        return (prefetch){.n_rows = 0};
    }
    return prefetch_of(
        bias, w->bias_rows[0] + first * bias->column_stride, n_keys,
        least(w->task->n_rows, n_queries - w->task->first_row % n_queries));
}

/* Prepares the block at `first` of the task's keys; returns whether any row may see any
 * of it. */
static NOINLINE bool
open_block(work *w, ptrdiff_t first, block *b)
{
    const attn_problem *p = w->p;

    b->first = first;
    b->end = least(first + ATTN_BLOCK, w->to);
    b->coverage = attn_see_block(p, w->task, first, b->end - first, w->see);
    if (b->coverage == ATTN_SEE_NONE) {
        return false;
    }
    if (p->bias.data != NULL) {
        load_bias(w, b);
    }
    if (!w->row_form && b->coverage == ATTN_SEE_SOME) {
        attn_transpose_bits(w->see, b->end - first, w->see_lanes);
    }
    if (p->dropout > 0) {
        find_kept(w, first);
    }
    return true;
}

#endif
