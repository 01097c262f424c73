/* Row form by vectors: the scores of a group of keys, LANES of them side by side, S[row][key]. */
#ifndef ATTN_KERNEL_ATTENTION_ROW_FORM_SCORES_H
#define ATTN_KERNEL_ATTENTION_ROW_FORM_SCORES_H

#include "kernel/attention/operands.h"
#include "kernel/attention/row_form/prefetch.h"
#include "kernel/gemm/lines.h"

/* Do two vectors of keys side by side drive one another out of a first-level cache of 64 sets with 8
 * lines each? With AVX2 one vector fits, whatever the stride. */
static bool
meet_in_sets(ptrdiff_t row_stride)
{
    return LANES == 8 && REAL_BITS == 32 && row_stride % 2048 == 0;
}

/* How many vectors of keys are taken at a time, of those that hold the next n. Bursts are better
 * short. */
static int
vectors_at_once(const work *w, ptrdiff_t n, storage kind, bool in_bursts)
{
    bool two = most_line_vectors(w->rows.task->n_rows, kind) == 2 && n > LANES;

    return two && !in_bursts && !meet_in_sets(w->rows.p->key.row_stride) ? 2 : 1;
}

/* In bursts, what is read while LANES keys at `first` are scored: as many keys more or, behind
 * the last that are scored, the first values. NULL for nothing. */
static const char *
next_burst(const work *w, ptrdiff_t first)
{
    const attn_problem *p = w->rows.p;

    if (first + 2 * LANES <= w->scored_to) {
        return keys_of(&w->rows, first + LANES, LANES).at;
    }
    bool alike = p->value_dim == p->head_dim &&
                 p->value.row_stride == p->key.row_stride &&
                 is_read_in_order(&p->value, p->value_dim);
    return alike ? values_of(&w->rows, w->scored_from, LANES).at : NULL;
}

/* Products of queries with the block's keys from k on, KEY_GROUP or as many as there are. */
static void
score_group(work *w, const block *b, ptrdiff_t k)
{
    ptrdiff_t first = b->first + k, n = least(b->end - first, KEY_GROUP);
    key_run run = keys_of(&w->rows, first, n);
    storage kind = key_storage(run.array->dtype);
    lines_product m = {.base = {.c = w->scores + k,
                                .c_row = ATTN_BLOCK,
                                .a = {w->rows.query, w->rows.key_width},
                                .b = run.at,
                                .b_row = run.array->row_stride,
                                .n_rows = row_form_rows(w->rows.task->n_rows),
                                .n_steps = w->rows.key_width},
                       .chain = DIM_STEPS,
                       .other = look_ahead(w, b, k / KEY_GROUP),
                       .touch_as = touch_form_of(w)};
    bool in_bursts = false;

    if (n % LANES == 0 && reads_in_place(run.array, run.dim, kind)) {
        m.touch = next_in_stream(w, b, first).at;
        in_bursts = reads_bursts(w, run.array, run.dim);
    } else {
        m.base.b = gather_keys(w, &run);
        m.base.b_row = w->rows.key_width * (ptrdiff_t)sizeof(operand);
        kind = AS_OPERANDS;
    }
    for (ptrdiff_t lane = 0, taken; lane < n; lane += taken) {
        int n_vec = vectors_at_once(w, n - lane, kind, in_bursts);
        if (in_bursts) {
            m.touch = next_burst(w, first + lane);
            if (first + lane == w->scored_from) {
                read_lines(m.base.b, LANES * m.base.b_row / CACHE_LINE);
            }
        }
        multiply_key_lines(&m, n_vec, kind);
        taken = n_vec * LANES;
        m.base.b += taken * m.base.b_row;
        m.base.c += taken;
        m.touch += m.touch == NULL || in_bursts ? 0 : taken * m.base.b_row;
        m.other.n_rows = 0;
    }
}

/* Products of queries with the block's keys. */
static void
multiply_keys(work *w, const block *b)
{
    for (ptrdiff_t k = 0; k < b->end - b->first; k += KEY_GROUP) {
        score_group(w, b, k);
    }
}

#endif
