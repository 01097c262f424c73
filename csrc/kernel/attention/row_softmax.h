/* Row form: a block's logits, and their exponentials. */
#ifndef ATTN_KERNEL_ATTENTION_ROW_SOFTMAX_H
#define ATTN_KERNEL_ATTENTION_ROW_SOFTMAX_H

#include "kernel/attention/logits.h"
#include "kernel/attention/products.h"
#include "kernel/attention/softmax.h"

/* Keys of a row whose weights are there, the last of them 0. */
static ptrdiff_t
row_keys(ptrdiff_t n_keys)
{
    return round_up(n_keys, most(SUM_TERMS, LANES));
}

/* S[row][key] for the block's keys; what is no key, up to row_keys, is -inf. Returns
 * what factor makes scores logits. */
static real
score_rows(work *w, const block *b)
{
    ptrdiff_t n_keys = b->end - b->first;
    bool plain = are_plain_scores(w);

    for (ptrdiff_t k = 0; k < n_keys; k += KEY_GROUP) {
        score_group(w, b, k);
    }
    if (!plain || b->coverage == ATTN_SEE_SOME) {
        finish_scores(&(strip){.at = w->scores,
                               .line = ATTN_BLOCK,
                               .bias = w->task->bias != NULL ? w->bias : NULL,
                               .bias_line = ATTN_BLOCK,
                               .bits = b->coverage == ATTN_SEE_SOME ? w->see[0] : NULL,
                               .bits_line = ATTN_BLOCK_WORDS,
                               .n_lines = w->task->n_rows,
                               .n_vec = (int)((n_keys + LANES - 1) / LANES)},
                      plain ? 1 : w->scale, w->p->softcap);
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        for (ptrdiff_t k = n_keys; k < row_keys(n_keys); k++) {
            ONE_BY_ONE;
            w->scores[r * ATTN_BLOCK + k] = (real)-INFINITY;
        }
    }
    return plain ? w->scale : 1;
}

/* As exponentiate_lanes, for rows that are lines, and without their sums. */
static void
exponentiate_rows(work *w, ptrdiff_t n_keys, real scale)
{
    real top[WIDTH] = {0};
    partial *s = &w->chunk;

    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        v_real line_top = v_set1((real)-INFINITY);
        for (ptrdiff_t k = 0; k < n_keys; k += LANES) {
            line_top = v_max(v_load(w->scores + r * ATTN_BLOCK + k), line_top);
        }
        top[r] = v_reduce_max(line_top) * scale;
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r += LANES) {
        v_store(w->rescale + r, raise_max(s->max + r, v_load(top + r)));
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        v_real max = finite_floor(v_set1(s->max[r]));
        for (ptrdiff_t k = 0; k < row_keys(n_keys); k += LANES) {
            v_store(line + k, exp_of(v_fms(v_load(line + k), v_set1(scale), max)));
        }
    }
}

#endif
