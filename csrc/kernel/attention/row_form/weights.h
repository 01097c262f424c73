/* Row form: a block's weights, their sums, and their form as operands. */
#ifndef ATTN_KERNEL_ATTENTION_ROW_FORM_WEIGHTS_H
#define ATTN_KERNEL_ATTENTION_ROW_FORM_WEIGHTS_H

#include "kernel/attention/row_form/prefetch.h"

/* Adds n weights of a row from k on to their sum, in the order of keys. */
static INLINE void
sum_weights(real *line, ptrdiff_t k, const ptrdiff_t n, real *sum)
{
    real total = *sum;

    for (ptrdiff_t i = k; i < k + n; i++) {
        total += line[i];
    }
    *sum = total;
}

/* Turns n weights of each row, from k on, into operands; dropped ones become 0. */
static INLINE void
finish_weights(work *w, ptrdiff_t k, const ptrdiff_t n)
{
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        if (w->rows.p->dropout > 0) {
            drop(line + k, 0, 1, round_up(n, LANES) / LANES, w->rows.keep[r], 0, k, 1);
        }
        pack_row_weights(line, k, round_up(n, SUM_TERMS));
    }
}

/* Adds n weights of each row from key k of the block on to their sums, in the order of keys, and
 * makes them operands. */
static void
take_weights(work *w, ptrdiff_t k, ptrdiff_t n, real *sums)
{
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        if (n == KEY_GROUP) {
            sum_weights(line, k, KEY_GROUP, sums + r);
        } else {
            for (ptrdiff_t i = k; i < k + n; i++) {
                ONE_BY_ONE;
                sum_weights(line, i, 1, sums + r);
            }
        }
    }
    if (n == KEY_GROUP) {
        finish_weights(w, k, KEY_GROUP);
    } else {
        finish_weights(w, k, n);
    }
}

/* Multiplies n weights of each row, from k on, by the scales of their values; those of values
 * that a row may not see stay 0, whatever the scales are. */
static NOINLINE void
scale_row_weights(work *w, const block *b, ptrdiff_t k, ptrdiff_t n)
{
    real scales[KEY_GROUP];

    load_scales(&w->rows, true, b->first + k, n, scales);
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        for (ptrdiff_t i = 0; i < n; i += LANES) {
            real *at = w->scores + r * ATTN_BLOCK + k + i;
            v_real x = v_mul(v_load(at), v_load(scales + i));
            if (b->coverage != ATTN_SEE_ALL) {
                uint64_t seen = w->rows.see[r][(k + i) / 64] >> ((k + i) % 64);
                x = v_select(v_mask_of(seen), x, v_set1(0));
            }
            v_store(at, x);
        }
    }
}

/* Prepares a group of keys, from k on, for the sums of its values: finishes its weights
 * and prefetches the rows that are read later. */
static void
begin_group(work *w, const block *b, ptrdiff_t k, real *sums)
{
    ptrdiff_t n_keys = b->end - b->first;
    prefetch next = look_ahead(w, b, (n_keys + k + KEY_GROUP - 1) / KEY_GROUP);

    prefetch_rows(&next, 0, next.n_rows);
    take_weights(w, k, least(n_keys - k, KEY_GROUP), sums);
    if (TERMS == 1 && w->rows.task->value_scale != NULL) {
        scale_row_weights(w, b, k, least(n_keys - k, KEY_GROUP));
    }
}

#endif
