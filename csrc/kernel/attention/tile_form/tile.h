/* Tile form: rows are lanes. The tiles of a task, WIDTH rows each, against one block of
 * keys. */
#ifndef ATTN_KERNEL_ATTENTION_TILE_FORM_TILE_H
#define ATTN_KERNEL_ATTENTION_TILE_FORM_TILE_H

#include "kernel/attention/products.h"
#include "kernel/attention/softmax.h"
#include "kernel/attention/statistics/statistics.h"
#include "kernel/attention/tile_form/bytes.h"
#include "kernel/attention/tile_form/codes.h"

/* The products of queries and keys of each span, which `seen` covers. */
static void
score_spans(work *w, const block *b, const span *spans, const span *seen)
{
    if (are_integers(&w->rows.p->key)) {
        multiply_byte_scores(w, b, spans);
    } else {
        multiply_scores(w, b, spans, seen);
    }
}

/* Adds what the rows see in a block to the chunk's partial. */
static void
attend_tiles(work *w, block *b)
{
    bool last = b->end >= w->rows.to;
    prefetch next[2] = {next_prefetch(w, b->end, true),
                        last ? queries_prefetch(&w->rows)
                             : bias_beside_values(w, b->end)};
    span spans[MAX_TILES];
    span seen = open_spans(&w->rows, b, spans);

    bool codes = are_shorts(&w->rows.p->value);
    bool done = attend_tile_by_tile(w, b, spans, &seen, next);

    if (!done) {
        score_spans(w, b, spans, &seen);
    }
    w->values_prefetched = b->end;
    for (int t = 0; t < w->rows.n_tiles && !codes && !done; t++) {
        if (spans[t].n > 0) {
            weigh_tile(w, b, t, &spans[t]);
        }
    }
    if (LOADS_COLUMNS && b->hides_late) {
        seen = open_spans(&w->rows, b, spans);
    }
    if (codes) {
        add_coded_block(w, b, spans);
    } else if (are_integers(&w->rows.p->value)) {
        add_byte_block(w, b, spans);
    } else if (!done) {
        add_block(w, b, spans, &seen, next);
    }
    for (int t = 0; t < w->rows.n_tiles; t++) {
        w->chunk.empty[t] = w->chunk.empty[t] && spans[t].n == 0;
    }
}

/* The second pass: weights[row][key] = e^(logit - max) / sum for one block, or what is
 * measured of them. */
static void
write_tile_weights(work *w, block *b)
{
    const attn_array *weights = &w->rows.p->weights->array;
    span spans[MAX_TILES];
    span seen = open_spans(&w->rows, b, spans);

    score_spans(w, b, spans, &seen);
    for (int t = 0; t < w->rows.n_tiles; t++) {
        const span *s = &spans[t];
        real scale = s->n > 0 ? finish_tile(w, b, t, s) : 1;
        for (ptrdiff_t lane = 0; s->n > 0 && lane < tile_rows(&w->rows, t);
             lane += LANES) {
            ptrdiff_t r = (ptrdiff_t)t * WIDTH + lane;
            v_real max = v_load(w->total.max + r), inverse = v_load(w->total.sum + r);
            real *scores = scores_of(w, t) + lane;
            for (ptrdiff_t k = 0; k < s->n; k++) {
                v_real weight =
                    weight_of(v_load(scores + k * WIDTH), scale, max, inverse);
                v_store(scores + k * WIDTH, weight);
            }
            if (w->rows.p->statistics != NULL) {
                measure_lanes(w, b, s, r, scores);
            }
        }
        if (w->rows.p->statistics != NULL) {
            continue;
        }
        drop_tile(w, b, t, s, kept_scale(&w->rows));
        for (ptrdiff_t lane = 0; s->n > 0 && lane < tile_rows(&w->rows, t);
             lane += LANES) {
            store_result(&w->rows, weights,
                         w->rows.task->weights + s->first * weights->column_stride,
                         (ptrdiff_t)t * WIDTH + lane, scores_of(w, t) + lane, s->n);
        }
    }
    if (w->rows.p->statistics != NULL && w->rows.task->statistics->received != NULL) {
        sum_over_rows(w, b, spans);
    }
}

#endif
