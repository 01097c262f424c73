/* Tile form: the scores of a block, S[key][lane]. */
#ifndef ATTN_KERNEL_ATTENTION_TILE_SCORES_H
#define ATTN_KERNEL_ATTENTION_TILE_SCORES_H

#include "kernel/attention/keys.h"
#include "kernel/attention/logits.h"
#include "kernel/attention/span.h"
#include "kernel/product_tiles.h"

static real *
scores_of(const work *w, int tile)
{
    return w->scores + (ptrdiff_t)tile * ATTN_BLOCK * WIDTH;
}

/* The products of queries and keys of each span; `seen` is all of them. */
static void
multiply_scores(work *w, const block *b, const span *spans, const span *seen)
{
    const attn_problem *p = w->p;
    prefetch next[2] = {values_prefetch(w, b->first), {.n_rows = 0}};
    ptrdiff_t d = 0;

    if (w->ends_head && b->end >= w->to) {
        next[1] = next_head_prefetch(w, false);
    }
    do { /* D may be 0 */
        ptrdiff_t n_columns = least(p->head_dim - d, ATTN_DIM_BLOCK);
        matrix keys = fetch_keys(w, seen->first, seen->n, d, n_columns);
        for (int t = 0; t < w->n_tiles; t++) {
            const operand *query = w->query + (t * w->key_width + d / TERMS) * WIDTH;
            if (spans[t].n == 0) {
                continue;
            }
            multiply(
                (product){.c = scores_of(w, t),
                          .c_row = WIDTH,
                          .a = {keys.at + (spans[t].first - seen->first) * keys.row,
                                keys.row},
                          .b = (const char *)query,
                          .b_row = WIDTH * sizeof(operand),
                          .n_rows = spans[t].n,
                          .n_steps = (n_columns + TERMS - 1) / TERMS,
                          .add = d > 0,
                          .next = {next[0], next[1]}},
                tile_vectors(w, t));
            next[0].n_rows = next[1].n_rows = 0;
        }
        d += ATTN_DIM_BLOCK;
    } while (d < p->head_dim);
}

/* finish_scores of a tile, whose first key is `first` of the block, with the bias, LANES x
 * LANES at a time: what is transposed stays near. */
static void
finish_with_bias(const work *w, const block *b, const strip *all, int tile,
                 ptrdiff_t first)
{
    real bias[LANES * LANES];

    for (ptrdiff_t lane = 0; lane < tile_rows(w, tile); lane += LANES) {
        ptrdiff_t n_rows = least(tile_rows(w, tile) - lane, LANES);
        for (ptrdiff_t k = 0; k < all->n_lines; k += LANES) {
            strip part = *all;
            const real *rows[LANES] = {NULL};
            for (ptrdiff_t i = 0; i < n_rows; i++) {
                rows[i] =
                    bias_row(w, b, (ptrdiff_t)tile * WIDTH + lane + i) + first + k;
            }
            part.n_lines = least(all->n_lines - k, LANES);
            transpose_in(bias, LANES, rows, n_rows, part.n_lines, NULL);
            part.at += k * WIDTH + lane;
            part.bias = bias;
            part.bias_line = LANES;
            part.bits = all->bits == NULL ? NULL : all->bits + k;
            part.first_bit += lane;
            part.n_vec = 1;
            finish_scores(&part, w->scale, w->p->softcap);
        }
    }
}

/* From the products of a span to its scores, masked ones -inf; returns what factor still
 * makes them logits. */
static real
finish_tile(work *w, const block *b, int tile, const span *s)
{
    bool plain = are_plain_scores(w);
    strip all = {.at = scores_of(w, tile),
                 .line = WIDTH,
                 .bits = s->masked ? w->see_lanes + (s->first - b->first) : NULL,
                 .bits_line = 1,
                 .first_bit = (ptrdiff_t)tile * WIDTH,
                 .n_lines = s->n,
                 .n_vec = tile_vectors(w, tile)};

    if (w->task->bias != NULL) {
        finish_with_bias(w, b, &all, tile, s->first - b->first);
        return 1;
    }
    if (plain && !s->masked) {
        return w->scale;
    }
    finish_scores(&all, plain ? 1 : w->scale, w->p->softcap);
    return plain ? w->scale : 1;
}

#endif
