/* Tile form with keys and values that are codes of 16 bits: weights become codes as they are
 * computed. core/bytes.h has the arithmetic. */
#ifndef ATTN_KERNEL_ATTENTION_TILE_FORM_CODES_H
#define ATTN_KERNEL_ATTENTION_TILE_FORM_CODES_H

#include "kernel/attention/softmax.h"
#include "kernel/attention/tile_form/bytes.h"

#if REAL_BITS == 32 && TERMS == 1

enum { MAXIMA = 4 }; /* that do not wait for each other */

/* The scales of a span's values, and what its products with a tile's weights are multiplied by. */
typedef struct {
    real scale[ATTN_BLOCK]; /* 0 for NaN */
    real most[WIDTH];       /* the largest that each row sees, or NaN */
    real unit[WIDTH], fresh[WIDTH];
} value_scales;

/* The largest scale that each of a vector of rows sees. */
static void
find_seen_scales(value_scales *v, ptrdiff_t n, const uint64_t *bits, ptrdiff_t bit,
                 real *most)
{
    v_real largest = v_set1(0), not_finite = v_set1(0);

    for (ptrdiff_t k = 0; k < n; k++) {
        v_real scale =
            v_select(v_mask_of(bits[k] >> bit), v_set1(v->scale[k]), v_set1(0));
        largest = v_max(scale, largest);
        not_finite = v_add(not_finite, scale);
    }
    v_store(most, v_select(v_is_nan(not_finite), not_finite, largest));
}

static NOINLINE void
load_value_scales(const work *w, const block *b, int tile, const span *s,
                  value_scales *v)
{
    ptrdiff_t n_lanes = tile_vectors(&w->rows, tile) * LANES;
    v_real largest = v_set1(0), not_finite = v_set1(0);

    load_scales(&w->rows, true, s->first, s->n, v->scale);
    for (ptrdiff_t i = 0; i < n_lanes && s->masked; i += LANES) {
        find_seen_scales(v, s->n, w->rows.see_lanes + (s->first - b->first),
                         (ptrdiff_t)tile * WIDTH + i, v->most + i);
    }
    for (ptrdiff_t k = 0; k < s->n; k += LANES) {
        v_real scale = v_load(v->scale + k);
        largest = v_max(scale, largest);
        not_finite = v_add(not_finite, scale);
        v_store(v->scale + k, v_select(v_is_nan(scale), v_set1(0), scale));
    }
    bool has_not_finite = v_bits_of(v_is_nan(not_finite)) != 0;
    for (ptrdiff_t i = 0; i < n_lanes && !s->masked; i += LANES) {
        v_store(v->most + i, v_set1(has_not_finite ? NAN : v_reduce_max(largest)));
    }
}

/* The largest of a vector's lines. It has no order, so that vectors do not wait for each other. */
static INLINE v_real
largest_score(const real *scores, ptrdiff_t n_keys)
{
    v_real top[MAXIMA];

    UNROLLED for (int i = 0; i < MAXIMA; i++)
    {
        top[i] = v_set1((real)-INFINITY);
    }
    for (ptrdiff_t k = 0; k < n_keys; k += MAXIMA) {
        UNROLLED for (int i = 0; i < MAXIMA; i++)
        {
            ptrdiff_t at = k + i < n_keys ? k + i : k;
            top[i] = v_max(v_load(scores + at * WIDTH), top[i]);
        }
    }
    return v_max(v_max(top[0], top[1]), v_max(top[2], top[3]));
}

/* Logits of a vector of rows become codes of weights, a line of pairs for two of them, relative to
 * the largest of the block. Adds the weights to the running sum. */
static INLINE void
code_lanes(real *scores, ptrdiff_t n_keys, value_scales *s, ptrdiff_t lane, real *max,
           real *sum, real *rescale)
{
    v_real top = largest_score(scores, n_keys), total = v_set1(0);
    v_real most = v_load(s->most + lane), largest = v_set1(ATTN_LARGEST_WEIGHT);

    v_store(rescale, raise_max(max, top));
    v_real fresh = exp_of(v_sub(top, finite_floor(v_load(max))));
    v_real by = v_select(v_less(v_set1(0), most), v_div(largest, most), v_set1(0));
    top = finite_floor(top);
    for (ptrdiff_t k = 0; k < n_keys; k += 2) {
        bool both = k + 1 < n_keys;
        const real *at = scores + k * WIDTH;
        v_real e[2] = {v_sub(v_load(at), top),
                       both ? v_sub(v_load(at + WIDTH), top) : v_set1((real)-INFINITY)};
        exponentiate(e, 2);
        total = v_add(v_add(total, e[0]), e[1]);
        for (int i = 0; i < 2; i++) {
            real scale = i == 0 || both ? s->scale[k + i] : 0;
            e[i] = v_mul(e[i], v_mul(v_set1(scale), by));
        }
        v_store_code_pairs(scores + k / 2 * WIDTH, e[0], e[1]);
    }
    v_store(sum, v_fma(v_load(sum), v_load(rescale), v_mul(total, fresh)));
    v_store(s->fresh + lane, fresh);
    v_store(s->unit + lane, v_div(most, largest));
}

/* The softmax of a tile's scores so far, and its products with values. */
static void
add_coded_tile(work *w, block *b, int tile, const span *s, const char *next)
{
    ptrdiff_t lane = (ptrdiff_t)tile * WIDTH;
    real *scores = scores_of(w, tile), *rescale = w->rescale + lane;
    real *max = w->chunk.max + lane, *sum = w->chunk.sum + lane;
    int n_vec = tile_vectors(&w->rows, tile);
    key_run run = values_of(&w->rows, s->first, s->n);
    value_scales scales;

    finish_tile(w, b, tile, s);
    load_value_scales(w, b, tile, s, &scales);
    for (ptrdiff_t i = 0; i < n_vec * LANES; i += LANES) {
        code_lanes(scores + i, s->n, &scales, i, max + i, sum + i, rescale + i);
    }
    w->rows.bytes->sum_lanes(
        &(attn_byte_product){.bytes = bytes_of(w, &run, next),
                             .codes = (const char *)scores,
                             .n_lanes = n_vec * LANES,
                             .unit = scales.unit,
                             .back = scales.fresh,
                             .keep = w->chunk.empty[tile] ? NULL : rescale,
                             .sums = w->chunk.output[tile],
                             .line = WIDTH});
}

/* The softmax of a block's scores, and its products with values. */
static NOINLINE void
add_coded_block(work *w, block *b, const span *spans)
{
    const char *next = bytes_after_values(w, b);

    for (int t = 0; t < w->rows.n_tiles; t++) {
        if (spans[t].n > 0) {
            add_coded_tile(w, b, t, &spans[t], next);
            next = NULL;
        }
    }
}

#else

static void
add_coded_block(work *w, block *b, const span *spans)
{
    (void)w, (void)b, (void)spans;
}

#endif

#endif
