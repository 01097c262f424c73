/* Tile form with keys or values of int8. */
#ifndef ATTN_KERNEL_ATTENTION_TILE_FORM_BYTES_H
#define ATTN_KERNEL_ATTENTION_TILE_FORM_BYTES_H

#include "kernel/attention/bytes.h"
#include "kernel/attention/tile_form/scores.h"

#if REAL_BITS == 32 && TERMS == 1

/* Products of a tile's queries and keys, n of them. A matrix unit may refuse one with few keys. */
static void
multiply_byte_keys(const work *w, const attn_byte_product *m, int n)
{
    const attn_byte_unit *unit = HAS_BYTE_UNIT ? w->rows.byte_unit : NULL;

    if (unit != NULL && unit->score_lanes(m, n)) {
        return;
    }
    for (int i = 0; i < n; i++) {
        if (unit == NULL || n == 1 || !unit->score_lanes(m + i, 1)) {
            w->rows.bytes->score_lanes(m + i);
        }
    }
}

/* Products of a tile's weights and values, n of them. */
static void
multiply_byte_values(const work *w, const attn_byte_product *m, int n)
{
    const attn_byte_unit *unit = HAS_BYTE_UNIT ? w->rows.byte_unit : NULL;
    bool done = unit != NULL && unit->sum_lanes(m, n);

    for (int i = 0; i < n && !done; i++) {
        w->rows.bytes->sum_lanes(m + i);
    }
}

/* The product that makes S[key][lane] of a tile's span; it has the keys' scales. */
static attn_byte_product
score_product(work *w, int tile, const span *s, real *scales, const char *next)
{
    key_run run = keys_of(&w->rows, s->first, s->n);
    ptrdiff_t lane = (ptrdiff_t)tile * WIDTH;

    load_scales(&w->rows, false, s->first, s->n, scales);
    return (attn_byte_product){
        .bytes = bytes_of(w, &run, next),
        .codes = (const char *)(w->rows.pairs + lane * w->rows.key_width / 2),
        .n_lanes = tile_vectors(&w->rows, tile) * LANES,
        .factor = w->rows.factor + lane,
        .scale = scales,
        .sums = scores_of(w, tile),
        .line = WIDTH};
}

/* Scores of a tile's rows that have no codes. */
static void
score_uncoded_lanes(const work *w, int tile, const span *s, const real *scales)
{
    key_run run = keys_of(&w->rows, s->first, s->n);
    ptrdiff_t lane = (ptrdiff_t)tile * WIDTH;

    for (ptrdiff_t i = 0; i < tile_rows(&w->rows, tile) && w->rows.uncoded_rows != 0;
         i++) {
        if (w->rows.uncoded_rows >> (lane + i) & 1) {
            score_uncoded_row(w, lane + i, &run, scales, scores_of(w, tile) + i, WIDTH);
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
            real scales[ATTN_BLOCK];
            attn_byte_product m = score_product(w, t, &spans[t], scales, next);
            multiply_byte_keys(w, &m, 1);
            score_uncoded_lanes(w, t, &spans[t], scales);
            next = NULL;
        }
    }
}

/* Adds the weighted values of lanes that have no codes to the chunk's output, which the product
 * with codes then leaves as it is: it adds 0 to 1 times what is there. */
static NOINLINE void
add_uncoded_lanes(work *w, int tile, const key_run *run, uint64_t uncoded, real *keep)
{
    real *output = w->chunk.output[tile];

    if (w->chunk.empty[tile]) {
        memset(output, 0, (size_t)(run->dim * WIDTH) * sizeof *output);
        w->chunk.empty[tile] = false;
    }
    for (ptrdiff_t i = 0; i < tile_rows(&w->rows, tile); i++) {
        for (ptrdiff_t d = 0; d < run->dim && (uncoded >> i & 1) != 0; d++) {
            real *at = output + d * WIDTH + i;
            *at = *at * keep[i] +
                  sum_uncoded_values(run, d, scores_of(w, tile) + i, WIDTH);
        }
        keep[i] = uncoded >> i & 1 ? 1 : keep[i];
    }
}

/* What the product of a tile's weights and values needs besides the codes. */
typedef struct {
    real unit[WIDTH], back[WIDTH], keep[WIDTH];
} weight_scales;

/* The product of a tile's weights, whose lanes without codes are `uncoded`, and values; rounds the
 * weights. */
static attn_byte_product
value_product(work *w, int tile, const span *s, uint64_t uncoded, weight_scales *to,
              const char *next)
{
    key_run run = values_of(&w->rows, s->first, s->n);
    real *weights = scores_of(w, tile);
    int n_lanes = tile_vectors(&w->rows, tile) * LANES;

    memcpy(to->keep, w->rescale + (ptrdiff_t)tile * WIDTH, sizeof to->keep);
    if (uncoded != 0) {
        add_uncoded_lanes(w, tile, &run, uncoded, to->keep);
    }
    w->rows.bytes->round_lanes(weights, s->n, WIDTH, n_lanes, to->unit, to->back);
    return (attn_byte_product){.bytes = bytes_of(w, &run, next),
                               .codes = (const char *)weights,
                               .n_lanes = n_lanes,
                               .unit = to->unit,
                               .back = to->back,
                               .keep = w->chunk.empty[tile] ? NULL : to->keep,
                               .sums = w->chunk.output[tile],
                               .line = WIDTH};
}

/* Finds the largest weights of a tile's lanes; returns those that have no codes. */
static uint64_t
find_uncoded_lanes(const work *w, int tile, const span *s, weight_scales *to)
{
    return w->rows.bytes->find_lanes(scores_of(w, tile), s->n, WIDTH,
                                     tile_vectors(&w->rows, tile) * LANES, to->unit);
}

/* As add_block. */
static NOINLINE void
add_byte_block(work *w, const block *b, const span *spans)
{
    const char *next = bytes_after_values(w, b);

    for (int t = 0; t < w->rows.n_tiles; t++) {
        if (spans[t].n > 0) {
            weight_scales scales;
            uint64_t uncoded = find_uncoded_lanes(w, t, &spans[t], &scales);
            attn_byte_product m =
                value_product(w, t, &spans[t], uncoded, &scales, next);
            multiply_byte_values(w, &m, 1);
            next = NULL;
        }
    }
}

/* Are products of bytes fastest for a whole chunk? A matrix unit falls asleep while blocks become
 * weights. There is memory for one tile. */
static bool
takes_byte_chunk(const work *w)
{
    const attn_problem *p = w->rows.p;

    return HAS_BYTE_UNIT && w->rows.byte_unit != NULL && w->rows.n_tiles == 1 &&
           p->key.dtype == ATTN_I8 && p->value.dtype == ATTN_I8 &&
           p->key.column_stride == 1 && p->value.column_stride == 1 &&
           w->rows.task->bias == NULL && p->dropout == 0;
}

/* Attends to the keys of a chunk, of which all rows see all: scores of all blocks, their weights,
 * and the products with values. False, with nothing done, where a row does not. */
static bool
attend_byte_chunk(work *w, ptrdiff_t first, ptrdiff_t end)
{
    attn_byte_product products[ATTN_CHUNK / ATTN_BLOCK] = {{.n_lanes = 0}};
    weight_scales weights[ATTN_CHUNK / ATTN_BLOCK];
    block blocks[ATTN_CHUNK / ATTN_BLOCK];
    span spans[ATTN_CHUNK / ATTN_BLOCK];
    real scales[ATTN_CHUNK];
    int n = 0, done = 0;

    if (!takes_byte_chunk(w)) {
        return false;
    }
    for (ptrdiff_t k = first; k < end; k += ATTN_BLOCK, n++) {
        if (!open_block(&w->rows, k, &blocks[n], true) ||
            blocks[n].coverage != ATTN_SEE_ALL) {
            return false;
        }
        spans[n] = tile_span(&w->rows, &blocks[n], 0);
    }
    for (int i = 0; i < n; i++) {
        w->scores = w->chunk_scores + (ptrdiff_t)i * ATTN_BLOCK * WIDTH;
        products[i] = score_product(w, 0, &spans[i], scales + i * ATTN_BLOCK,
                                    bytes_after_keys(w, &blocks[i]));
    }
    multiply_byte_keys(w, products, n);
    for (int i = 0; i < n; i++) {
        block next = {.end = blocks[i].first + ATTN_CHUNK};
        w->scores = w->chunk_scores + (ptrdiff_t)i * ATTN_BLOCK * WIDTH;
        score_uncoded_lanes(w, 0, &spans[i], scales + i * ATTN_BLOCK);
        exponentiate_tile(w, &blocks[i], 0, &spans[i]);
        uint64_t uncoded = find_uncoded_lanes(w, 0, &spans[i], &weights[i]);
        if (uncoded != 0 && i > done) { /* whose weights are added first */
            multiply_byte_values(w, products + done, i - done);
            done = i;
        }
        products[i] = value_product(w, 0, &spans[i], uncoded, &weights[i],
                                    bytes_after_values(w, &next));
        w->chunk.empty[0] = false;
    }
    multiply_byte_values(w, products + done, n - done);
    w->scores = w->chunk_scores;
    return true;
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

static bool
attend_byte_chunk(work *w, ptrdiff_t first, ptrdiff_t end)
{
    (void)w, (void)first, (void)end;
    return false;
}

#endif

#endif
