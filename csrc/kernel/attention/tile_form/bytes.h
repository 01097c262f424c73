/* Tile form with keys or values of int8. */
#ifndef ATTN_KERNEL_ATTENTION_TILE_FORM_BYTES_H
#define ATTN_KERNEL_ATTENTION_TILE_FORM_BYTES_H

#include "kernel/attention/bytes.h"
#include "kernel/attention/tile_form/scores.h"

#if REAL_BITS == 32 && TERMS == 1

/* The products of a tile's weights with values. */
static void
sum_byte_lanes(const work *w, const attn_byte_product *m)
{
    if (w->rows.byte_unit == NULL || !w->rows.byte_unit->sum_lanes(m)) {
        w->rows.bytes->sum_lanes(m);
    }
}

/* S[key][lane] of a tile's span, with the keys' scales. */
static void
score_byte_lanes(work *w, int tile, const span *s, const char *next)
{
    key_run run = keys_of(&w->rows, s->first, s->n);
    ptrdiff_t lane = (ptrdiff_t)tile * WIDTH;
    real scales[ATTN_BLOCK];

    load_scales(&w->rows, false, s->first, s->n, scales);
    const attn_byte_product m = {
        .bytes = bytes_of(w, &run, next),
        .codes = (const char *)(w->rows.pairs + lane * w->rows.key_width / 2),
        .n_lanes = tile_vectors(&w->rows, tile) * LANES,
        .factor = w->rows.factor + lane,
        .scale = scales,
        .sums = scores_of(w, tile),
        .line = WIDTH};
    if (w->rows.byte_unit == NULL || !w->rows.byte_unit->score_lanes(&m)) {
        w->rows.bytes->score_lanes(&m);
    }
    for (ptrdiff_t i = 0; i < tile_rows(&w->rows, tile) && w->rows.odd_rows != 0; i++) {
        if (w->rows.odd_rows >> (lane + i) & 1) {
            score_odd_row(w, lane + i, &run, scales, scores_of(w, tile) + i, WIDTH);
        }
    }
}

/* As multiply_scores. */
static NOINLINE void
multiply_byte_scores(work *w, const block *b, const span *spans)
{
    const char *next = bytes_after_keys(w, b);

    for (int t = 0; t < w->rows.n_tiles; t++) {
        if (spans[t].n > 0) {
            score_byte_lanes(w, t, &spans[t], next);
            next = NULL;
        }
    }
}

/* Adds the weighted values of lanes that have no codes to the chunk's output, which the product
 * with codes then leaves as it is: it adds 0 to 1 times what is there. */
static NOINLINE void
add_odd_lanes(work *w, int tile, const key_run *run, uint64_t odd, real *keep)
{
    real *output = w->chunk.output[tile];

    if (w->chunk.empty[tile]) {
        memset(output, 0, (size_t)(run->dim * WIDTH) * sizeof *output);
        w->chunk.empty[tile] = false;
    }
    for (ptrdiff_t i = 0; i < tile_rows(&w->rows, tile); i++) {
        for (ptrdiff_t d = 0; d < run->dim && (odd >> i & 1) != 0; d++) {
            real *at = output + d * WIDTH + i;
            *at = *at * keep[i] + sum_odd_values(run, d, scores_of(w, tile) + i, WIDTH);
        }
        keep[i] = odd >> i & 1 ? 1 : keep[i];
    }
}

static void
add_byte_lanes(work *w, int tile, const span *s, const char *next)
{
    key_run run = values_of(&w->rows, s->first, s->n);
    real *weights = scores_of(w, tile), *keep = w->rescale + (ptrdiff_t)tile * WIDTH;
    int n_lanes = tile_vectors(&w->rows, tile) * LANES;
    real unit[WIDTH], back[WIDTH];
    uint64_t odd = w->rows.bytes->find_lanes(weights, s->n, WIDTH, n_lanes, unit);

    if (odd != 0) {
        add_odd_lanes(w, tile, &run, odd, keep);
    }
    w->rows.bytes->round_lanes(weights, s->n, WIDTH, n_lanes, unit, back);
    sum_byte_lanes(w, &(attn_byte_product){.bytes = bytes_of(w, &run, next),
                                           .codes = (const char *)weights,
                                           .n_lanes = n_lanes,
                                           .unit = unit,
                                           .back = back,
                                           .keep = w->chunk.empty[tile] ? NULL : keep,
                                           .sums = w->chunk.output[tile],
                                           .line = WIDTH});
}

/* As add_block. */
static NOINLINE void
add_byte_block(work *w, const block *b, const span *spans)
{
    const char *next = bytes_after_values(w, b);

    for (int t = 0; t < w->rows.n_tiles; t++) {
        if (spans[t].n > 0) {
            add_byte_lanes(w, t, &spans[t], next);
            next = NULL;
        }
    }
}

#else

static void
multiply_byte_scores(work *w, const block *b, const span *spans)
{
    (void)w, (void)b, (void)spans;
}

static void
add_byte_block(work *w, const block *b, const span *spans)
{
    (void)w, (void)b, (void)spans;
}

#endif

#endif
