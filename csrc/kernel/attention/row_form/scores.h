/* Row form by vectors: the scores of a group of keys, LANES of them side by side, S[row][key]. */
#ifndef ATTN_KERNEL_ATTENTION_ROW_FORM_SCORES_H
#define ATTN_KERNEL_ATTENTION_ROW_FORM_SCORES_H

#include "kernel/attention/operands.h"
#include "kernel/attention/row_form/prefetch.h"
#include "kernel/gemm/lines.h"

/* Keys as they are read, and what is touched or prefetched meanwhile. */
typedef struct {
    const char *at;
    ptrdiff_t row;     /* bytes from key to key */
    const char *touch; /* as many keys, in order; or NULL */
    prefetch next;
} key_lanes;

/* scores[row][lane] = query[row] . key[lane] for n_vec vectors of keys, transposed in registers:
 * one or, for a single row, two. A score is a chain of sums, each of which waits for the one
 * before; two chains take little longer than one. */
static INLINE void
score_keys(const work *w, const key_lanes *keys, const int rows, const int n_vec,
           real *scores, const storage kind)
{
    const ptrdiff_t size = storage_bytes(kind);
    const ptrdiff_t lines = LANES * LANES * size / CACHE_LINE; /* in LANES columns */
    const char *at = keys->at;
    ptrdiff_t d = 0;

    for (ptrdiff_t first = 0; first == 0 || first < w->rows.key_width;
         first += DIM_STEPS) {
        ptrdiff_t end = least(first + DIM_STEPS, w->rows.key_width);
        v_real sum[ATTN_FEW_ROWS];
        for (int i = 0; i < rows * n_vec; i++) {
            sum[i] = v_set1(0);
        }
        for (; d + LANES <= end; d += LANES, at += LANES * size) {
            if (d * size % CACHE_LINE == 0) {
                prefetch_line(&keys->next, d * size);
            }
            add_columns(sum, at, keys->row, rows, n_vec, w->rows.query + d,
                        w->rows.key_width, kind);
            if (keys->touch != NULL && rows == 1 && n_vec == 2) { /* a loop is slower */
                touch(w, keys->touch + 2 * LANES * size * d, 2 * lines, rows);
            } else if (keys->touch != NULL) {
                touch(w, keys->touch + LANES * size * d, lines, rows);
            }
        }
        for (; d < end; d++, at += size) {
            for (int v = 0; v < n_vec; v++) {
                v_operand k = load_column(at + v * LANES * keys->row, keys->row, kind);
                add_products(sum + v * rows, &k, 1, rows, w->rows.query + d,
                             w->rows.key_width);
            }
        }
        for (int i = 0; i < rows * n_vec; i++) {
            real *to = scores + i % rows * ATTN_BLOCK + i / rows * LANES;
            v_store(to, first == 0 ? sum[i] : v_add(v_load(to), sum[i]));
        }
    }
}

/* How many vectors of keys are taken at a time, of those that hold the next n. Where a vector
 * is a single number two would be code that gains nothing; bursts are better short. */
static int
vectors_at_once(const work *w, ptrdiff_t n, bool in_bursts)
{
    bool two = LANES > 1 && w->rows.task->n_rows == 1 && n > LANES;

    return two && !in_bursts ? 2 : 1;
}

static INLINE void
score_keys_as(const work *w, const key_lanes *keys, int n_vec, real *scores,
              const storage kind)
{
    switch (row_form_rows(w->rows.task->n_rows)) {
    case 1:
        if (n_vec == 2) {
            score_keys(w, keys, 1, 2, scores, kind);
        } else {
            score_keys(w, keys, 1, 1, scores, kind);
        }
        break;
    case 2: score_keys(w, keys, 2, 1, scores, kind); break;
    case 4: score_keys(w, keys, 4, 1, scores, kind); break;
    default: score_keys(w, keys, 8, 1, scores, kind); break;
    }
}

static NOINLINE void
score_keys_of_rows(const work *w, const key_lanes *keys, int n_vec, real *scores,
                   storage kind)
{
    switch (kind) {
#if REAL_BITS == 32 && TERMS == 1
    case AS_F16: score_keys_as(w, keys, n_vec, scores, AS_F16); break;
    case AS_BF16: score_keys_as(w, keys, n_vec, scores, AS_BF16); break;
#elif TERMS > 1
    case AS_TWO_ROWS: /* of values alone */
#endif
    case AS_OPERANDS: score_keys_as(w, keys, n_vec, scores, AS_OPERANDS); break;
    }
}

/* In bursts, what is read while LANES keys at `first` are scored: as many keys more or, behind
 * the last that are scored, the first values. NULL for nothing. */
static const char *
next_burst(const work *w, ptrdiff_t first)
{
    const attn_problem *p = w->rows.p;

    if (first + 2 * LANES <= w->scored_to) {
        return keys_of(&w->rows, first + LANES, LANES).at;
    }
    bool alike = p->value_dim == p->head_dim &&
                 p->value.row_stride == p->key.row_stride &&
                 is_read_in_order(&p->value, p->value_dim);
    return alike ? values_of(&w->rows, w->scored_from, LANES).at : NULL;
}

/* Products of queries with the block's keys from k on, KEY_GROUP or as many as there are. */
static void
score_group(work *w, const block *b, ptrdiff_t k)
{
    ptrdiff_t first = b->first + k, n = least(b->end - first, KEY_GROUP);
    key_run run = keys_of(&w->rows, first, n);
    storage kind = key_storage(run.array->dtype);
    key_lanes keys = {.at = run.at,
                      .row = run.array->row_stride,
                      .next = look_ahead(w, b, k / KEY_GROUP)};
    bool in_bursts = false;

    if (n % LANES == 0 && reads_in_place(run.array, run.dim, kind)) {
        keys.touch = next_in_stream(w, b, first).at;
        in_bursts = reads_bursts(w, run.array, run.dim);
    } else {
        keys.at = gather_keys(w, &run);
        keys.row = w->rows.key_width * (ptrdiff_t)sizeof(operand);
        kind = AS_OPERANDS;
    }
    for (ptrdiff_t lane = 0, taken; lane < n; lane += taken) {
        int n_vec = vectors_at_once(w, n - lane, in_bursts);
        if (in_bursts) {
            keys.touch = next_burst(w, first + lane);
            if (first + lane == w->scored_from) {
                read_lines(keys.at, LANES * keys.row / CACHE_LINE);
            }
        }
        score_keys_of_rows(w, &keys, n_vec, w->scores + k + lane, kind);
        taken = n_vec * LANES;
        keys.at += taken * keys.row;
        keys.touch += keys.touch == NULL || in_bursts ? 0 : taken * keys.row;
        keys.next.n_rows = 0;
    }
}

#endif
