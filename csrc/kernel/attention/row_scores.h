/* Row form: the scores of keys that are lanes, S[row][key]. */
#ifndef ATTN_KERNEL_ATTENTION_ROW_SCORES_H
#define ATTN_KERNEL_ATTENTION_ROW_SCORES_H

#include "kernel/attention/stream.h"

/* sum[row][lane] += query[row][d] * key[lane][d] for the n operands d from `at` on that
 * the transposed vectors of k hold. */
static INLINE void
add_products(v_real *sum, const v_operand *k, const int n, const int rows,
             const work *w, ptrdiff_t at)
{
    for (int i = 0; i < n; i++) {
        for (int r = 0; r < rows; r++) {
            v_operand q = v_set1_operand(w->query[r * w->key_width + at + i]);
            sum[r] = v_dot(q, k[i], sum[r]);
        }
    }
}

/* Where LANES keys lie, and what is read or announced meanwhile. */
typedef struct {
    const char *at;
    ptrdiff_t row;     /* bytes from key to key */
    const char *touch; /* as much as KEY_GROUP keys; or NULL */
    prefetch next;
} key_lanes;

/* scores[row][lane] = query[row] . key[lane] for LANES keys, transposed in registers. */
static INLINE void
score_keys(const work *w, const key_lanes *keys, const int rows, real *scores,
           const storage kind)
{
    const ptrdiff_t size = storage_bytes(kind);
    const ptrdiff_t lines =
        KEY_GROUP * LANES * size / CACHE_LINE; /* in LANES columns */
    const char *at = keys->at;
    ptrdiff_t d = 0;

    for (ptrdiff_t first = 0; first == 0 || first < w->key_width; first += DIM_STEPS) {
        ptrdiff_t end = least(first + DIM_STEPS, w->key_width);
        v_real sum[ATTN_FEW_ROWS];
        v_operand k[LANES];
        for (int r = 0; r < rows; r++) {
            sum[r] = v_set1(0);
        }
        for (; d + LANES <= end; d += LANES, at += LANES * size) {
            if (d * size % CACHE_LINE == 0) {
                prefetch_line(&keys->next, d * size);
            }
            for (int i = 0; i < LANES; i++) {
                k[i] = load_operands(at + i * keys->row, NULL, kind);
            }
            v_transpose_operands(k);
            add_products(sum, k, LANES, rows, w, d);
            if (keys->touch != NULL) {
                touch(w, keys->touch + KEY_GROUP * d * size, lines, rows);
            }
        }
        for (; d < end; d++, at += size) {
            operand lanes[LANES];
            for (int i = 0; i < LANES; i++) {
                lanes[i] = load_operand(at + i * keys->row, kind);
            }
            k[0] = v_load_operands(lanes);
            add_products(sum, k, 1, rows, w, d);
        }
        for (int r = 0; r < rows; r++) {
            real *to = scores + (ptrdiff_t)r * ATTN_BLOCK;
            v_store(to, first == 0 ? sum[r] : v_add(v_load(to), sum[r]));
        }
    }
}

static INLINE void
score_keys_as(const work *w, const key_lanes *keys, real *scores, const storage kind)
{
    switch (row_form_rows(w->task->n_rows)) {
    case 1: score_keys(w, keys, 1, scores, kind); break;
    case 2: score_keys(w, keys, 2, scores, kind); break;
    case 4: score_keys(w, keys, 4, scores, kind); break;
    default: score_keys(w, keys, 8, scores, kind); break;
    }
}

static NOINLINE void
score_keys_of_rows(const work *w, const key_lanes *keys, real *scores, storage kind)
{
    switch (kind) {
#if REAL_BITS == 32 && TERMS == 1
    case AS_F16: score_keys_as(w, keys, scores, AS_F16); break;
    case AS_BF16: score_keys_as(w, keys, scores, AS_BF16); break;
#endif
    default: score_keys_as(w, keys, scores, AS_OPERANDS); break;
    }
}

#endif
