/* The pass of a head's rows over a chunk of keys, tile by tile. */
#ifndef ATTN_KERNEL_BACKWARD_PASS_H
#define ATTN_KERNEL_BACKWARD_PASS_H

#include "kernel/backward/bias.h"
#include "kernel/backward/choice.h"
#include "kernel/backward/clear.h"
#include "kernel/backward/delta.h"
#include "kernel/backward/scores.h"

/* add_to_band of all bands of the spans. */
static void
add_to_keys(backward_work *w, const block *b, const span *spans, const span *s,
            operand *factors, const attn_array *rows, const attn_array *gradient,
            ptrdiff_t n_columns)
{
    for (ptrdiff_t key = s->first; key < s->first + s->n;) {
        band next = band_at(w, spans, s, key);
        add_to_band(w, b, &next, factors + (key - s->first) * FACTOR_LINE, rows,
                    gradient, n_columns);
        key += next.keys.n;
    }
}

/* Adds the gradients of the tile's rows and of the keys of the block at `first`. */
static NOINLINE void
pass_block(backward_work *w, ptrdiff_t first)
{
    const attn_backward_problem *g = w->g;
    const attn_problem *p = &g->attention;
    const attn_backward_task *part = w->part;
    block b;
    span spans[MAX_TILES];

    if (!open_block(&w->rows, first, &b, false)) {
        return;
    }
    span s = open_spans(&w->rows, &b, spans);
    if (s.n == 0) {
        return;
    }
    for (int t = 0; t < w->rows.n_tiles; t++) {
        widen_span(&spans[t], &s);
        s.masked = s.masked || spans[t].n != s.n;
    }
    load_tile(w);
    clear_keys(w, b.end);
    multiply_by_lanes(w, keys_of(&w->rows, s.first, s.n), s.first, spans, w->rows.query,
                      w->scores);
    multiply_by_lanes(w, values_of(&w->rows, s.first, s.n), s.first, spans,
                      w->grad_output, w->grad_weights);
    differentiate(w, &b, spans, &s);
    if (part->value) {
        add_to_keys(w, &b, spans, &s, w->weights, &g->grad_output, &g->grad_value,
                    p->value_dim);
    }
    if (part->key) {
        add_to_keys(w, &b, spans, &s, w->grad_scores, &p->query, &g->grad_key,
                    p->head_dim);
    }
    if (part->query) {
        add_to_queries(w, &b, spans, &s);
    }
    if (part->bias) {
        add_to_bias(w, &s);
    }
}

/* The rows of one tile against the keys from `first` up to `end`. */
static NOINLINE void
pass_tile(backward_work *w, ptrdiff_t tile, ptrdiff_t first, ptrdiff_t end,
          bool ends_chunk)
{
    clear_tiles(w, tile + HAS_UNIT);
    choose_tile(w, tile);
    if (!find_keys(w, first, end)) {
        return;
    }
    begin_tile(w, tile);
    find_bias(w);
    for (ptrdiff_t j = w->rows.from / ATTN_BLOCK * ATTN_BLOCK; j < w->rows.to;
         j += ATTN_BLOCK) {
        ptrdiff_t next = j + ATTN_BLOCK;
        w->n_prefetches = 0;
        if (next >= w->rows.to && ends_chunk) {
            add_key_prefetches(w, end);
        } else if (next < end && next >= w->fresh_key) {
            add_key_prefetches(w, next);
        }
        if (next >= w->rows.to) {
            add_tile_prefetches(w);
        }
        pass_block(w, j);
    }
    end_tile(w);
}

/* The rows of the current batch and head against the same keys. Only the tiles that may see
 * one are looked at, so that a window takes time by the row. */
static void
pass_chunk(backward_work *w, ptrdiff_t first, ptrdiff_t end, const attn_worker *worker)
{
    ptrdiff_t of_head = attn_divide_up(w->task.n_queries, ATTN_TASK_ROWS), from, to;

    attn_seeing_queries(&w->g->attention, &w->task, first, end, &from, &to);
    from = from / ATTN_TASK_ROWS;
    to = attn_divide_up(to, ATTN_TASK_ROWS);
    for (ptrdiff_t head = w->part->first_tile / of_head * of_head;
         head < w->end_tile && from < to; head += of_head) {
        ptrdiff_t end_tile = least(head + to, w->end_tile);
        for (ptrdiff_t t = most(head + from, w->part->first_tile); t < end_tile; t++) {
            if (!attn_gives_up(worker)) {
                pass_tile(w, t, first, end,
                          t + 1 == end_tile && head + of_head >= w->end_tile);
            }
        }
    }
}

#endif
