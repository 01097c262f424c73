/* Row form: scores on a matrix unit, S[row][key]. */
#ifndef ATTN_KERNEL_ATTENTION_UNIT_ROW_SCORES_H
#define ATTN_KERNEL_ATTENTION_UNIT_ROW_SCORES_H

#include "kernel/attention/stream.h"
#include "kernel/attention/unit_keys.h"

#ifdef MATRIX_UNIT

/* Products of queries with the block's keys from k on, KEY_GROUP or as many as there are: first
 * rows are lanes, then keys. */
static void
score_group(work *w, const block *b, ptrdiff_t k)
{
    ptrdiff_t first = b->first + k, n = least(b->end - first, KEY_GROUP);
    matrix keys = fetch_key_tiles(w, first, n, 0, w->p->head_dim);
    const char *next = are_key_tiles(w, n) ? next_in_stream(w, b, first) : NULL;
    real sums[KEY_GROUP * LANES];
    v_real a[LANES];

    if (next != NULL) {
        touch(w, next, KEY_GROUP * w->p->key.row_stride / CACHE_LINE, STREAM_ROWS);
    }
    multiply_on_unit(&(unit_product){.c = sums,
                                     .c_row = LANES,
                                     .a = keys.at,
                                     .a_row = keys.row,
                                     .a_tile = UNIT_ROWS * keys.row,
                                     .a_step = UNIT_OPERANDS,
                                     .b = w->query,
                                     .b_row = WIDTH,
                                     .n_rows = n,
                                     .n_vec = 1,
                                     .n_steps = w->key_width / UNIT_OPERANDS,
                                     .next = {look_ahead(w, b, k / KEY_GROUP)}});
    for (ptrdiff_t lane = 0; lane < n; lane += LANES) {
        if (w->task->n_rows <= 4) {
            u_turn_four(sums + lane * LANES, a);
        } else {
            for (int i = 0; i < LANES; i++) {
                a[i] = v_load(sums + (lane + i) * LANES);
            }
            v_transpose(a);
        }
        for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
            v_store(w->scores + r * ATTN_BLOCK + k + lane, a[r]);
        }
    }
}

#endif
#endif
