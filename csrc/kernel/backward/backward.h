/* The entry points of attention backwards, those of sinks.h aside. A part's keys are
 * taken a chunk at a time: its gradients stay in the cache while the tiles of rows pass
 * over it. */
#ifndef ATTN_KERNEL_BACKWARD_BACKWARD_H
#define ATTN_KERNEL_BACKWARD_BACKWARD_H

#include "kernel/backward/clear.h"
#include "kernel/backward/sinks.h"
#include "kernel/backward/pass.h"

/* The part's range of keys in the current batch. A part of one tile, the current one,
 * that adds to no gradient of keys takes the keys that this tile sees. */
static void
find_part_keys(const backward_work *w, ptrdiff_t *first, ptrdiff_t *end)
{
    const attn_backward_task *part = w->part;
    const attn_problem *p = &w->g->attention;
    ptrdiff_t from, to;

    *first = part->first_key;
    *end = least(part->end_key, attn_n_keys(p, w->b));
    if (!part->key && !part->value && part->first_tile + 1 == w->end_tile) {
        attn_seen_keys(&w->task, &from, &to);
        *first = most(*first, from / ATTN_CHUNK * ATTN_CHUNK);
        *end = least(*end, to);
    }
}

/* The pass of the part's rows, of the current batch and head, over its keys. */
static void
pass_keys(backward_work *w, const attn_worker *worker)
{
    bool has_tiles = w->part->first_tile < w->end_tile;
    ptrdiff_t first, end_key;

    if (has_tiles) {
        choose_tile(w, w->part->first_tile);
    }
    find_part_keys(w, &first, &end_key);
    for (; first < end_key; first += ATTN_CHUNK) {
        ptrdiff_t end = least(first + ATTN_CHUNK, end_key);
        w->first_key = w->fresh_key = first;
        if (has_tiles) {
            pass_chunk(w, first, end, worker);
        }
        clear_keys(w, end);
        visit_keys(w, first, end, FINISH);
    }
}

static void
run_backward(const attn_backward_problem *g, const attn_backward_task *part,
             const attn_worker *worker)
{
    const attn_problem *p = &g->attention;
    backward_work *w = open_backward(g, worker);

    w->part = part;
    begin_products();
    for (w->b = part->first_batch; w->b < part->end_batch; w->b++) {
        ptrdiff_t n_queries = attn_n_queries(p, w->b);
        w->end_tile = least(part->end_tile, attn_backward_tiles(p, n_queries));
        for (w->kv_head = part->first_kv_head; w->kv_head < part->end_kv_head;
             w->kv_head++) {
            begin_head(w);
            find_fresh_tiles(w);
            pass_keys(w, worker);
            clear_tiles(w, w->end_tile);
            visit_queries(w, part->first_tile, w->end_tile, FINISH);
        }
    }
    end_products();
}

#endif
