/* Row form: all rows of the task, few, against one block of keys: keys are lanes of the
 * scores, head dimension those of the output. Keys and values are read once, a group of
 * rows at a time, from wherever they lie. */
#ifndef ATTN_KERNEL_ATTENTION_ROW_FORM_ROW_H
#define ATTN_KERNEL_ATTENTION_ROW_FORM_ROW_H

#include "kernel/attention/products.h"
#include "kernel/attention/row_form/bytes.h"
#include "kernel/attention/softmax.h"

/* Keys of a row whose weights are there, the last of them 0. */
static ptrdiff_t
row_keys(ptrdiff_t n_keys)
{
    return round_up(n_keys, most(SUM_TERMS, LANES));
}

/* Multiplies the block's scores by the scales of its keys. */
static NOINLINE void
scale_row_scores(work *w, const block *b)
{
    ptrdiff_t n_keys = b->end - b->first;
    real scales[ATTN_BLOCK];

    load_scales(&w->rows, false, b->first, n_keys, scales);
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        for (ptrdiff_t k = 0; k < n_keys; k += LANES) {
            real *at = w->scores + r * ATTN_BLOCK + k;
            v_store(at, v_mul(v_load(at), v_load(scales + k)));
        }
    }
}

/* Where the scores of the block at `first` are. */
static void
point_at_scores(work *w, ptrdiff_t first)
{
    w->scores =
        w->chunk_scores + first % ATTN_CHUNK * row_form_rows(w->rows.task->n_rows);
}

/* In bursts, multiplies all keys first .. end - 1 of a chunk that some row may see before any
 * value is read: memory is read faster the longer it is read in order. */
static void
multiply_chunk(work *w, ptrdiff_t first, ptrdiff_t end)
{
    w->scored_from = first;
    w->scored_to = end;
    w->has_scores = true;
    for (; first < end; first += ATTN_BLOCK) {
        block b = {.first = first,
                   .end = least(first + ATTN_BLOCK, end),
                   .coverage = ATTN_SEE_ALL};
        if (attn_see_block(w->rows.p, w->rows.task, first, b.end - first,
                           w->rows.see) != ATTN_SEE_NONE) {
            point_at_scores(w, first);
            multiply_keys(w, &b);
        }
    }
}

/* S[row][key] for the block's keys; lanes behind the last key, up to row_keys, are
 * -inf. Returns the factor that turns scores into logits. */
static real
score_rows(work *w, const block *b)
{
    ptrdiff_t n_keys = b->end - b->first;
    bool plain = are_plain_scores(&w->rows, w->scale);

    if (are_integers(&w->rows.p->key)) {
        score_byte_rows(w, b);
    } else {
        if (!w->has_scores) {
            w->scored_from = b->first;
            w->scored_to = b->end;
            multiply_keys(w, b);
        }
        if (TERMS == 1 && w->rows.task->key_scale != NULL) {
            scale_row_scores(w, b);
        }
    }
    if (!plain || b->coverage == ATTN_SEE_SOME) {
        finish_scores(
            &(strip){.at = w->scores,
                     .line = ATTN_BLOCK,
                     .bias = w->rows.task->bias != NULL ? w->rows.bias : NULL,
                     .bias_line = ATTN_BLOCK,
                     .bits = b->coverage == ATTN_SEE_SOME ? w->rows.see[0] : NULL,
                     .bits_line = ATTN_BLOCK_WORDS,
                     .n_lines = w->rows.task->n_rows,
                     .n_vec = (int)((n_keys + LANES - 1) / LANES)},
            plain ? 1 : w->scale, w->rows.p);
    }
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        for (ptrdiff_t k = n_keys; k < row_keys(n_keys); k++) {
            ONE_BY_ONE;
            w->scores[r * ATTN_BLOCK + k] = (real)-INFINITY;
        }
    }
    return plain ? w->scale : 1;
}

/* As exponentiate_lanes, for rows that are lines, and without their sums. */
static void
exponentiate_rows(work *w, ptrdiff_t n_keys, real scale)
{
    real top[WIDTH] = {0};
    v_real factor = v_set1(exponent_scale(scale));
    partial *s = &w->chunk;

    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        v_real line_top = v_set1((real)-INFINITY);
        for (ptrdiff_t k = 0; k < n_keys; k += LANES) {
            line_top = v_max(v_load(w->scores + r * ATTN_BLOCK + k), line_top);
        }
        top[r] = v_reduce_max(line_top) * scale;
    }
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r += LANES) {
        v_store(w->rescale + r, raise_max(s->max + r, v_load(top + r)));
    }
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        v_real base = exponent_base(v_set1(s->max[r]));
        for (ptrdiff_t k = 0; k < row_keys(n_keys); k += LANES) {
            v_store(line + k, operand_exp(v_load(line + k), factor, base));
        }
    }
}

/* The first of the block's values that are not there: of a chunk, scoring brings LANES. */
static const char *
next_values(const work *w, const block *b)
{
    key_run values = values_of(&w->rows, b->first, b->end - b->first);

    return b->first == w->scored_from && values.n > LANES ? rest_of(values, LANES).at
                                                          : values.at;
}

/* Adds what the rows see in a block to the chunk's partial. */
static void
attend_rows(work *w, const block *b)
{
    ptrdiff_t n_keys = b->end - b->first;
    bool add = !w->chunk.empty[0];
    real sums[WIDTH] = {0}; /* of the block's weights */

    real scale = score_rows(w, b);
    if (w->reads_bursts) {
        prefetch_early(next_values(w, b));
    }
    exponentiate_rows(w, n_keys, scale);
    if (are_integers(&w->rows.p->value)) {
        sum_byte_rows(w, b, sums);
    } else {
        sum_rows(w, b, sums);
    }
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r += LANES) {
        v_real before = v_load(w->chunk.sum + r), keep = v_load(w->rescale + r);
        v_store(w->chunk.sum + r, v_fma(before, keep, v_load(sums + r)));
    }
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        real *output = w->row_output + r * w->value_width;
        const real *block_sums = w->row_sums + r * w->value_width;
        v_real keep = v_set1(w->rescale[r]);
        for (ptrdiff_t d = 0; d < w->value_width; d += LANES) {
            v_real sum = v_load(block_sums + d);
            v_store(output + d, add ? v_fma(v_load(output + d), keep, sum) : sum);
        }
    }
    w->chunk.empty[0] = false;
}

/* Brings the chunk's output into the layout of a tile, for merging and writing. */
static void
rows_to_tile(work *w)
{
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows && !w->chunk.empty[0]; r++) {
        for (ptrdiff_t d = 0; d < w->rows.p->value_dim; d++) {
            ONE_BY_ONE;
            w->chunk.output[0][d * WIDTH + r] = w->row_output[r * w->value_width + d];
        }
    }
}

/* The second pass, as write_tile_weights. */
static void
write_row_weights(work *w, const block *b)
{
    const attn_array *weights = &w->rows.p->weights->array;
    ptrdiff_t n_keys = b->end - b->first;

    w->unit_columns = 0;
    real scale = score_rows(w, b);
    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        v_real max = v_set1(w->total.max[r]), inverse = v_set1(w->total.sum[r]);
        for (ptrdiff_t k = 0; k < n_keys; k += LANES) {
            v_store(line + k, weight_of(v_load(line + k), scale, max, inverse));
        }
        if (w->rows.p->dropout > 0) {
            drop(line, 0, 1, round_up(n_keys, LANES) / LANES, w->rows.keep[r], 0, 0,
                 kept_scale(&w->rows));
        }
        store_row(w->rows.task->weights + row_offset(&w->rows, weights, r) +
                      b->first * weights->column_stride,
                  weights->column_stride, line, n_keys, weights->dtype);
    }
}

#endif
