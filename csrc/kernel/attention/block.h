/* A block of keys: which of them each row may see, and its bias. */
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
    /* A bias may hide keys by -inf. Where searches_late(), open_block() does not look for it: */
    bool unsearched; /* finish_tile() has yet to look for it, */
    bool hides_late; /* or has found some, so that spans are to be opened again */
} block;

/* The block's bias of row r of the task: where it lies, if it can be read there, or
 * where load_bias brings it. Row form reads whole vectors and always has a copy. */
static const real *
bias_row(const task_rows *t, const block *b, ptrdiff_t r)
{
    const attn_array *bias = &t->p->bias;

    if (t->row_form || !is_plain(bias, t->p->n_keys)) {
        return t->bias + r * ATTN_BLOCK;
    }
    return (const real *)(const void *)(t->bias_rows[r] +
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
load_bias(task_rows *t, block *b)
{
    const attn_array *bias = &t->p->bias;
    ptrdiff_t n_keys = b->end - b->first;

    if (b->coverage == ATTN_SEE_ALL) {
        memset(t->see, 0xff, sizeof t->see);
    }
    for (ptrdiff_t r = 0; r < t->task->n_rows; r++) {
        const real *row = bias_row(t, b, r);
        real *copy = t->bias + r * ATTN_BLOCK;
        if (row == copy) {
            load_row(copy, t->bias_rows[r] + b->first * bias->column_stride,
                     bias->column_stride, n_keys, bias->dtype);
            memset(copy + n_keys, 0,
                   (size_t)(round_up(n_keys, LANES) - n_keys) * sizeof(real));
        }
        for (ptrdiff_t k = 0; k < n_keys; k += 64) {
            uint64_t masked = find_minus_inf(row + k, least(n_keys - k, 64));
            if (masked != 0) {
                t->see[r][k / 64] &= ~masked;
                b->coverage = ATTN_SEE_SOME;
            }
        }
    }
}

/* Can the block's bias be added to scores before -inf is looked for? In tile form, where only
 * whole squares are added, and if each tile has a row that sees both ends of the block: then
 * -inf elsewhere leaves all spans as long as they are. */
static bool
searches_late(const task_rows *t, const block *b)
{
    const attn_problem *p = t->p;
    ptrdiff_t n_keys = b->end - b->first;

    if (!LOADS_COLUMNS || t->row_form || b->coverage != ATTN_SEE_ALL ||
        !is_plain(&p->bias, p->n_keys) || p->softcap > 0 || are_integers(&p->value) ||
        t->task->n_rows % LANES != 0 || n_keys % LANES != 0) {
        return false;
    }
    for (int tile = 0; tile < t->n_tiles; tile++) {
        const real *row = bias_row(t, b, (ptrdiff_t)tile * WIDTH);
        if (row[0] < -REAL_MAX || row[n_keys - 1] < -REAL_MAX) {
            return false;
        }
    }
    return true;
}

/* Finds the -inf of an unsearched block, once sums of its bias show that there may be some. */
static NOINLINE void
search_late(task_rows *t, block *b)
{
    b->unsearched = false;
    load_bias(t, b);
    b->hides_late = b->coverage == ATTN_SEE_SOME;
    if (b->hides_late) {
        attn_transpose_bits(t->see, b->end - b->first, t->see_lanes);
    }
}

/* The bias of the block at `first` for the task's rows of one head; behind the last block, that of
 * the next task's first one. */
static prefetch
bias_prefetch(const task_rows *t, ptrdiff_t first)
{
    const attn_array *bias = &t->p->bias;
    ptrdiff_t n_queries = t->task->n_queries, row = t->task->first_row;

    if (t->task->bias == NULL) {
        return (prefetch){.n_rows = 0};
    }
    if (first >= t->to) {
        first = t->from / ATTN_BLOCK * ATTN_BLOCK;
        row = next_task_row(t);
    }
    return prefetch_of(bias,
                       t->task->bias + row_offset(t, bias, row - t->task->first_row) +
                           first * bias->column_stride,
                       least(t->to - first, ATTN_BLOCK),
                       least(t->p->task_rows, n_queries - row % n_queries));
}

/* Prepares the block at `first` of the task's keys; returns whether any row may see any
 * of it. If `late`, the caller adds the bias by finish_tile and opens spans again where that
 * hides keys. */
static NOINLINE bool
open_block(task_rows *t, ptrdiff_t first, block *b, bool late)
{
    const attn_problem *p = t->p;

    b->first = first;
    b->end = least(first + ATTN_BLOCK, t->to);
    b->coverage = attn_see_block(p, t->task, first, b->end - first, t->see);
    b->unsearched = b->hides_late = false;
    if (b->coverage == ATTN_SEE_NONE) {
        return false;
    }
    if (p->bias.data != NULL) {
        b->unsearched = late && searches_late(t, b);
    }
    if (p->bias.data != NULL && !b->unsearched) {
        load_bias(t, b);
    }
    if (!t->row_form && b->coverage == ATTN_SEE_SOME) {
        attn_transpose_bits(t->see, b->end - first, t->see_lanes);
    }
    if (p->dropout > 0) {
        find_kept(t, first);
    }
    return true;
}

#endif
