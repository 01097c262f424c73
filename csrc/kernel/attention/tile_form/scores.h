/* Tile form: the scores of a block, S[key][lane], from their products to weights. */
#ifndef ATTN_KERNEL_ATTENTION_TILE_FORM_SCORES_H
#define ATTN_KERNEL_ATTENTION_TILE_FORM_SCORES_H

#include "kernel/attention/keys.h"
#include "kernel/attention/softmax.h"
#include "kernel/attention/tile_form/span.h"

static real *
scores_of(const work *w, int tile)
{
    return w->scores + (ptrdiff_t)tile * ATTN_BLOCK * WIDTH;
}

/* What is prefetched beside a block's scores and the next keys: its values or, where they need
 * none and the block is the last, the rows of the output. */
static prefetch
prefetch_beside_scores(const work *w, const block *b)
{
    prefetch values = block_prefetch(w, b->first, true);

    return values.n_rows > 0 || b->end < w->rows.to ? values
                                                    : output_prefetch(&w->rows);
}

/* The bias of the block at `end` is prefetched during the scores of the one before, if products of
 * vectors prefetch no keys meanwhile, or else beside the next values. */
static prefetch
bias_beside_values(const work *w, ptrdiff_t end)
{
    return HAS_UNIT || w->reads_ahead ? bias_prefetch(&w->rows, end)
                                      : (prefetch){.n_rows = 0};
}

#if LOADS_COLUMNS
/* finish_scores without softcap of LANES rows and keys, whose bias is in `rows`; adds the bias of
 * each row to `sum`. */
static INLINE void
finish_square(const strip s, real scale, const real *const rows[LANES], v_real *sum)
{
    v_real x[LANES], part[4], minus_inf = v_set1((real)-INFINITY);

    v_load_columns(x, rows);
    UNROLLED for (int i = 0; i < LANES; i++)
    {
        part[i % 4] = i < 4 ? x[i] : v_add(part[i % 4], x[i]);
        x[i] = v_add(v_mul(v_load(s.at + i * WIDTH), v_set1(scale)), x[i]);
        if (s.bits != NULL) {
            x[i] = v_select(v_mask_of(s.bits[i] >> s.first_bit), x[i], minus_inf);
        }
        v_store(s.at + i * WIDTH, x[i]);
    }
    *sum = v_add(*sum, v_add(v_add(part[0], part[1]), v_add(part[2], part[3])));
}
#endif

/* finish_scores of at most LANES rows and keys. Their bias is transposed on the way or, where that
 * is no faster or they are fewer, near by. */
static INLINE void
finish_part(const work *w, strip *part, const real *const rows[LANES], ptrdiff_t n_rows,
            v_real *sum)
{
    real bias[LANES * LANES];

    (void)sum;
#if LOADS_COLUMNS
    if (n_rows == LANES && part->n_lines == LANES && !has_softcap(w->rows.p)) {
        finish_square(*part, w->scale, rows, sum);
        return;
    }
#endif
    transpose_in(bias, LANES, rows, n_rows, part->n_lines, NULL);
    part->bias = bias;
    part->bias_line = LANES;
    part->n_vec = 1;
    finish_scores(part, w->scale, w->rows.p);
}

/* finish_scores of a tile, whose first key is `first` of the block, with the bias. Returns whether
 * some of that may be -inf, if the block is unsearched: then a row's sum is -inf or NaN. */
static NOINLINE bool
finish_with_bias(const work *w, const block *b, const strip *all, int tile,
                 ptrdiff_t first)
{
    uint64_t finite = ~UINT64_C(0);

    for (ptrdiff_t lane = 0; lane < tile_rows(&w->rows, tile); lane += LANES) {
        ptrdiff_t n_rows = least(tile_rows(&w->rows, tile) - lane, LANES);
        const real *rows[LANES] = {NULL};
        v_real sum = v_set1(0);
        for (ptrdiff_t i = 0; i < n_rows; i++) {
            ONE_BY_ONE;
            rows[i] = bias_row(&w->rows, b, (ptrdiff_t)tile * WIDTH + lane + i) + first;
        }
        for (ptrdiff_t k = 0; k < all->n_lines; k += LANES) {
            strip part = *all;
            part.n_lines = least(all->n_lines - k, LANES);
            part.at += k * WIDTH + lane;
            part.bits = all->bits == NULL ? NULL : all->bits + k;
            part.first_bit += lane;
            finish_part(w, &part, rows, n_rows, &sum);
            for (ptrdiff_t i = 0; i < n_rows; i++) {
                ONE_BY_ONE;
                rows[i] += LANES;
            }
        }
        finite &= v_bits_of(v_less(v_set1(-REAL_MAX), sum));
    }
    return finite != v_bits_of(v_mask_of(~UINT64_C(0)));
}

/* Multiplies a span's lines by the scales of its keys or values; weights of values that a row
 * may not see stay 0, whatever the scales are. */
static NOINLINE void
scale_tile(const work *w, const block *b, int tile, const span *s, bool value)
{
    const uint64_t *bits =
        value && s->masked ? w->rows.see_lanes + (s->first - b->first) : NULL;
    real scales[ATTN_BLOCK];

    load_scales(&w->rows, value, s->first, s->n, scales);
    for (ptrdiff_t lane = 0; lane < tile_vectors(&w->rows, tile) * LANES;
         lane += LANES) {
        real *at = scores_of(w, tile) + lane;
        for (ptrdiff_t k = 0; k < s->n; k++, at += WIDTH) {
            v_real x = v_mul(v_load(at), v_set1(scales[k]));
            if (bits != NULL) {
                uint64_t seen = bits[k] >> ((ptrdiff_t)tile * WIDTH + lane);
                x = v_select(v_mask_of(seen), x, v_set1(0));
            }
            v_store(at, x);
        }
    }
}

/* Scores become -inf where bit first_bit + lane of a key is 0. */
static void
hide_scores(real *scores, const uint64_t *bits, ptrdiff_t first_bit, ptrdiff_t n_keys)
{
    for (ptrdiff_t k = 0; k < n_keys; k++) {
        uint64_t seen = bits[k] >> first_bit;
        UNROLLED for (int v = 0; v < TILE_VECTORS; v++)
        {
            real *at = scores + k * WIDTH + v * LANES;
            v_mask mask = v_mask_of(seen >> v * LANES);
            v_store(at, v_select(mask, v_load(at), v_set1((real)-INFINITY)));
        }
    }
}

/* Turns the products of a span into scores, masked ones into -inf; returns the factor
 * that turns scores into logits. */
static real
finish_tile(work *w, block *b, int tile, const span *s)
{
    bool plain = are_plain_scores(&w->rows, w->scale);
    strip all = {.at = scores_of(w, tile),
                 .line = WIDTH,
                 .bits = s->masked ? w->rows.see_lanes + (s->first - b->first) : NULL,
                 .bits_line = 1,
                 .first_bit = (ptrdiff_t)tile * WIDTH,
                 .n_lines = s->n,
                 .n_vec = tile_vectors(&w->rows, tile)};

    if (TERMS == 1 && w->rows.task->key_scale != NULL &&
        !are_integers(&w->rows.p->key)) {
        scale_tile(w, b, tile, s, false);
    }
    if (w->rows.task->bias != NULL) {
        bool may_hide = finish_with_bias(w, b, &all, tile, s->first - b->first);
        if (LOADS_COLUMNS && b->unsearched && may_hide) {
            search_late(&w->rows, b);
        }
        if (LOADS_COLUMNS && b->hides_late) {
            hide_scores(all.at, w->rows.see_lanes + (s->first - b->first),
                        all.first_bit, s->n);
        }
        return 1;
    }
    if (plain && !s->masked) {
        return w->scale;
    }
    if (plain) { /* the other keys have logits already */
        hide_scores(all.at + (s->hidden - s->first) * WIDTH,
                    all.bits + (s->hidden - s->first), all.first_bit,
                    s->end_hidden - s->hidden);
        return w->scale;
    }
    finish_scores(&all, w->scale, w->rows.p);
    return 1;
}

/* Dropout of a tile's weights, with a factor for those that stay. */
static void
drop_tile(work *w, const block *b, int tile, const span *s, real factor)
{
    if (w->rows.p->dropout > 0) {
        drop(scores_of(w, tile), WIDTH, s->n, tile_vectors(&w->rows, tile),
             w->rows.keep_lanes + (s->first - b->first), 1, (ptrdiff_t)tile * WIDTH,
             factor);
    }
}

/* The softmax of a tile's scores so far: exponentials in their place, as operands. */
static void
exponentiate_tile(work *w, block *b, int tile, const span *s)
{
    ptrdiff_t lane = (ptrdiff_t)tile * WIDTH;
    real *scores = scores_of(w, tile), *rescale = w->rescale + lane;
    real *max = w->chunk.max + lane, *sum = w->chunk.sum + lane;
    int n_vec = tile_vectors(&w->rows, tile);
    ptrdiff_t n = round_up(s->n, SUM_TERMS);
    real scale = finish_tile(w, b, tile, s);
    bool whole = n_vec == TILE_VECTORS;

    if (!HAS_UNIT && whole) {
        exponentiate_lanes(scores, s->n, scale, max, sum, rescale, TILE_VECTORS);
    }
    for (ptrdiff_t i = 0; i < n_vec * LANES && (HAS_UNIT || !whole); i += LANES) {
        exponentiate_lanes(scores + i, s->n, scale, max + i, sum + i, rescale + i, 1);
    }
    drop_tile(w, b, tile, s, 1);
    if (TERMS == 1 && w->rows.task->value_scale != NULL) {
        scale_tile(w, b, tile, s, true);
    }
    for (ptrdiff_t i = s->n * WIDTH; i < n * WIDTH; i += LANES) {
        v_store(scores + i, v_set1(0));
    }
    for (ptrdiff_t i = 0; i < n_vec * LANES; i += LANES) {
        pack_weights(scores + i, n, WIDTH);
    }
}

#endif
