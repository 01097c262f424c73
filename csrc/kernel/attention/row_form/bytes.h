/* Row form with keys or values of int8. */
#ifndef ATTN_KERNEL_ATTENTION_ROW_FORM_BYTES_H
#define ATTN_KERNEL_ATTENTION_ROW_FORM_BYTES_H

#include "kernel/attention/bytes.h"
#include "kernel/attention/row_form/weights.h"

#if REAL_BITS == 32 && TERMS == 1

/* S[row][key] of the block's keys, with the keys' scales. */
static NOINLINE void
score_byte_rows(work *w, const block *b)
{
    key_run run = keys_of(&w->rows, b->first, b->end - b->first);
    real scales[ATTN_BLOCK];

    load_scales(&w->rows, false, b->first, run.n, scales);
    w->rows.bytes->score_rows(
        &(attn_byte_product){.bytes = bytes_of(w, &run, bytes_after_keys(w, b)),
                             .codes = (const char *)w->rows.query,
                             .code_row = 2 * w->rows.key_width,
                             .n_rows = (int)row_form_rows(w->rows.task->n_rows),
                             .factor = w->rows.factor,
                             .scale = scales,
                             .sums = w->scores,
                             .line = ATTN_BLOCK});
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows && w->rows.uncoded_rows != 0; r++) {
        if (w->rows.uncoded_rows >> r & 1) {
            score_uncoded_row(w, r, &run, scales, w->scores + r * ATTN_BLOCK, 1);
        }
    }
}

/* The block's weights of row r times the scales of their values; those of values that the row
 * may not see are 0, whatever the scales are, as is what fills up the codes. */
static void
weigh_values(work *w, const block *b, ptrdiff_t r, const real *scales, real *to)
{
    ptrdiff_t n_keys = b->end - b->first, filled = round_up(n_keys, LANES);
    const real *from = w->scores + r * ATTN_BLOCK;

    memset(to + filled, 0,
           (size_t)(round_up(n_keys, ATTN_CODE_UNIT) - filled) * sizeof *to);
    for (ptrdiff_t k = 0; k < n_keys; k += LANES) {
        v_real x = v_mul(v_load(from + k), v_load(scales + k));
        if (b->coverage != ATTN_SEE_ALL) {
            uint64_t seen = w->rows.see[r][k / 64] >> (k % 64);
            x = v_select(v_mask_of(seen), x, v_set1(0));
        }
        v_store(to + k, x);
    }
    if (w->rows.p->dropout > 0) {
        drop(to, 0, 1, filled / LANES, w->rows.keep[r], 0, 0, 1);
    }
}

/* As sum_rows: sums of the block's weights, and of its weighted values. */
static NOINLINE void
sum_byte_rows(work *w, const block *b, real *sums)
{
    key_run run = values_of(&w->rows, b->first, b->end - b->first);
    ptrdiff_t n_rows = w->rows.task->n_rows;
    real unit[ATTN_FEW_ROWS] = {0}, back[ATTN_FEW_ROWS] = {0}, scales[ATTN_BLOCK];
    real weights[ATTN_FEW_ROWS * ATTN_BLOCK]; /* then codes */
    attn_byte_product m = {.bytes = bytes_of(w, &run, bytes_after_values(w, b)),
                           .codes = (const char *)weights,
                           .code_row = 2 * ATTN_BLOCK,
                           .n_rows = (int)row_form_rows(n_rows),
                           .unit = unit,
                           .back = back,
                           .weights = w->scores,
                           .totals = sums,
                           .sums = w->row_sums,
                           .line = w->value_width};
    uint32_t uncoded = 0;

    load_scales(&w->rows, true, b->first, run.n, scales);
    for (ptrdiff_t r = 0; r < m.n_rows; r++) {
        real *line = weights + r * ATTN_BLOCK;
        if (r >= n_rows) {
            memset(line, 0, ATTN_BLOCK * sizeof *line);
            continue;
        }
        weigh_values(w, b, r, scales, line);
        bool has_codes =
            w->rows.bytes->round_row(line, round_up(run.n, ATTN_CODE_UNIT),
                                     ATTN_LARGEST_CODE, line, &unit[r], &back[r]);
        uncoded |= (uint32_t)!has_codes << r;
    }
    w->rows.bytes->sum_rows(&m);
    for (ptrdiff_t r = 0; r < n_rows && uncoded != 0; r++) {
        for (ptrdiff_t d = 0; d < run.dim && (uncoded >> r & 1) != 0; d++) {
            w->row_sums[r * w->value_width + d] =
                sum_uncoded_values(&run, d, weights + r * ATTN_BLOCK, 1);
        }
    }
}

#else

static void
score_byte_rows(work *w, const block *b)
{
    (void)w, (void)b;
}

static void
sum_byte_rows(work *w, const block *b, real *sums)
{
    (void)w, (void)b, (void)sums;
}

#endif

#endif
