/* The entry points of attention backwards, delta.h's aside. A part's keys are taken a chunk at
 * a time, whose gradients stay near while the tiles of rows pass by. */
#ifndef ATTN_KERNEL_BACKWARD_BACKWARD_H
#define ATTN_KERNEL_BACKWARD_BACKWARD_H

#include "kernel/backward/bias.h"
#include "kernel/backward/clear.h"
#include "kernel/backward/delta.h"
#include "kernel/backward/scores.h"
#include "kernel/backward/sums.h"

/* Adds what the tile's rows and the keys of the block at `first` make of each other. */
static void
sweep_block(backward_work *w, ptrdiff_t first)
{
    const attn_backward_problem *g = w->g;
    const attn_problem *p = &g->attention;
    const attn_backward_task *part = w->part;
    block b;
    span spans[MAX_TILES];

    if (!open_block(&w->rows, first, &b)) {
        return;
    }
    span s = open_spans(&w->rows, &b, spans);
    if (s.n == 0) {
        return;
    }
    for (int t = 0; t < w->rows.n_tiles; t++) { /* of spans narrower than all of them */
        s.masked = s.masked || spans[t].n != s.n;
    }
    multiply_by_lanes(w, &p->key, p->head_dim, (const real *)w->rows.query, &s,
                      w->weights);
    multiply_by_lanes(w, &p->value, p->value_dim, w->grad_output, &s, w->grad_scores);
    differentiate(w, &b, &s);
    if (part->value) {
        add_to_keys(w, &b, &s, w->weights, &g->grad_output, &g->grad_value,
                    p->value_dim);
    }
    if (part->key) {
        add_to_keys(w, &b, &s, w->grad_scores, &p->query, &g->grad_key, p->head_dim);
    }
    if (part->query) {
        add_to_queries(w, &b, &s);
    }
    if (part->bias) {
        add_to_bias(w, &s);
    }
}

/* The rows of the current batch and head against the keys from `first` up to `end`. */
static void
sweep_chunk(backward_work *w, ptrdiff_t n_tiles, ptrdiff_t first, ptrdiff_t end,
            const attn_worker *worker)
{
    ptrdiff_t end_tile = least(w->part->end_tile, n_tiles);

    for (ptrdiff_t t = w->part->first_tile; t < end_tile; t++) {
        choose_tile(w, t);
        if (attn_gives_up(worker) || !find_keys(w, first, end)) {
            continue;
        }
        w->n_ahead = 0;
        load_tile(w);
        find_delta(w);
        for (ptrdiff_t j = w->rows.from / ATTN_BLOCK * ATTN_BLOCK; j < w->rows.to;
             j += ATTN_BLOCK) {
            if (j + ATTN_BLOCK >= w->rows.to) {
                if (t + 1 == end_tile) {
                    ask_for_chunk(w, end);
                }
                ask_for_tile(w);
            }
            sweep_block(w, j);
        }
    }
}

static void
run_backward(const attn_backward_problem *g, const attn_backward_task *part,
             const attn_worker *worker)
{
    const attn_problem *p = &g->attention;
    backward_work *w = open_backward(g, worker);

    w->part = part;
    for (w->b = part->first_batch; w->b < part->end_batch; w->b++) {
        ptrdiff_t n_tiles = attn_backward_tiles(
            p, attn_packed_length(p->query_starts, w->b, p->n_queries));
        ptrdiff_t end_key =
            least(part->end_key, attn_packed_length(p->key_starts, w->b, p->n_keys));
        for (w->kv_head = part->first_kv_head; w->kv_head < part->end_kv_head;
             w->kv_head++) {
            visit_queries(w, n_tiles, CLEAR);
            for (ptrdiff_t j = part->first_key; j < end_key; j += ATTN_CHUNK) {
                ptrdiff_t end = least(j + ATTN_CHUNK, end_key);
                visit_keys(w, j, end, CLEAR);
                sweep_chunk(w, n_tiles, j, end, worker);
                visit_keys(w, j, end, SETTLE);
            }
            visit_queries(w, n_tiles, SETTLE);
        }
    }
}

#endif
