/* From scores and the gradients of weights to weights and the gradients of scores. Source of
 * the formulas: Dao, FlashAttention-2, 2023, section 3.1.2. */
#ifndef ATTN_KERNEL_BACKWARD_SCORES_H
#define ATTN_KERNEL_BACKWARD_SCORES_H

#include "kernel/attention/softmax.h"
#include "kernel/backward/task.h"
#include "kernel/operands/lanes.h"
#include "kernel/math/exp.h"

/* The bias of a span, as bias[key][lane]. */
static void
transpose_bias(backward_work *w, const block *b, const span *s)
{
    for (ptrdiff_t r = 0; r < w->task.n_rows; r += LANES) {
        const real *rows[LANES] = {NULL};
        ptrdiff_t n = least(w->task.n_rows - r, LANES);
        for (ptrdiff_t i = 0; i < n; i++) {
            ONE_BY_ONE;
            rows[i] = bias_row(&w->rows, b, r + i) + (s->first - b->first);
        }
        transpose_in(w->bias + r, LINE, rows, n, s->n, NULL);
    }
}

/* What a vector of rows has, from `lane` on. */
typedef struct {
    ptrdiff_t lane;
    v_real lse, exponent; /* what is subtracted from exponents, and their scale */
    v_real delta;
    v_real scale, cap, kept;
} row_vector;

/* Is there more between scores and weights than a scale? */
static INLINE bool
changes_scores(const backward_work *w, const bool plain)
{
    return !plain && (has_softcap(&w->g->attention) || w->task.bias != NULL);
}

/* The vector's weights and gradients of scores of the key in line `k`; bits: of the rows that see the
 * key, keep: of the weights that stay. The gradients are those of the products, so that they include
 * the scale and the soft cap's derivative. `plain`: no option is set, and the compiler leaves them
 * out. */
static INLINE void
differentiate_key(const backward_work *w, const row_vector *rows, ptrdiff_t k,
                  const uint64_t *bits, const uint64_t *keep, const bool plain,
                  v_real *weights, v_real *grads)
{
    const attn_problem *p = &w->g->attention;
    ptrdiff_t at = k * LINE + rows->lane;
    v_real x = v_load(w->scores + at), product_grad = rows->scale, zero = v_set1(0);

    if (TERMS > 1 && changes_scores(w, plain)) { /* rows of floats are scaled before */
        x = v_mul(x, rows->scale);
    }
    if (!plain && has_softcap(p)) {
        v_real grad;
        x = cap_softly(x, rows->cap, &grad);
        product_grad = v_mul(rows->scale, grad);
    }
    if (!plain && w->task.bias != NULL) {
        x = v_add(x, v_load(w->bias + at));
    }
    v_real weight = weight_exp_by_lse(x, rows->exponent, rows->lse);
    v_real gradient = v_load(w->grad_weights + at), used = weight;
    if (!plain && keep != NULL) {
        v_mask stays = v_mask_of(*keep >> rows->lane);
        gradient = v_select(stays, v_mul(gradient, rows->kept), zero);
        used = v_select(stays, v_mul(weight, rows->kept), zero);
    }
    gradient = v_mul(weight, v_sub(gradient, rows->delta));
    if (!plain && bits != NULL) {
        v_mask seen = v_mask_of(*bits >> rows->lane);
        used = v_select(seen, used, zero);
        gradient = v_select(seen, gradient, zero);
        product_grad = v_select(seen, product_grad, zero); /* NaN by the soft cap */
    }
    if (!plain && w->task.bias != NULL) {
        v_store(w->bias + at, gradient);
    }
    *weights = used;
    *grads = v_mul(gradient, product_grad);
}

/* Stores the factors of TERMS keys, whose first is in line `k`. */
static INLINE void
store_keys(const backward_work *w, ptrdiff_t lane, ptrdiff_t k,
           const v_real weights[TERMS], const v_real grads[TERMS])
{
    ptrdiff_t at = k * FACTOR_LINE;

    store_factors(weights, factors_of_rows(w->weights + at, lane), FACTOR_LINE, NULL);
    store_factors(grads, factors_of_rows(w->grad_scores + at, lane), FACTOR_LINE,
                  w->grad_pairs + k / TERMS * LINE + lane);
}

/* One vector of rows for each of n keys, whose first is in line `line`, a multiple of TERMS. */
static INLINE void
differentiate_lanes(backward_work *w, ptrdiff_t line, ptrdiff_t n, const uint64_t *bits,
                    const uint64_t *keep, ptrdiff_t lane, const bool plain)
{
    const attn_problem *p = &w->g->attention;
    real scale = changes_scores(w, plain) ? 1 : (real)p->scale;
    const row_vector rows = {lane,
                             v_mul(v_load(w->lse + lane), v_set1(exponent_scale(1))),
                             v_set1(exponent_scale(scale)),
                             v_load(w->delta + lane),
                             v_set1((real)p->scale),
                             v_set1((real)p->softcap),
                             v_set1(kept_scale(&w->rows))};

    for (ptrdiff_t k = 0; k < n; k += TERMS) {
        v_real weights[TERMS], grads[TERMS];
        UNROLLED for (int j = 0; j < TERMS; j++)
        {
            weights[j] = grads[j] = v_set1(0);
            if (k + j < n) {
                differentiate_key(
                    w, &rows, line + k + j, bits == NULL ? NULL : bits + k + j,
                    keep == NULL ? NULL : keep + k + j, plain, &weights[j], &grads[j]);
            }
        }
        store_keys(w, lane, line + k, weights, grads);
    }
}

/* Zeros in lines first .. end - 1 of a vector of rows, which do not see these keys. */
static void
clear_lanes(backward_work *w, ptrdiff_t first, ptrdiff_t end, ptrdiff_t lane)
{
    const v_real none[2] = {v_set1(0), v_set1(0)};

    for (ptrdiff_t k = first; k < end; k += TERMS) {
        store_keys(w, lane, k, none, none);
    }
    for (ptrdiff_t k = first; k < end && w->task.bias != NULL; k++) {
        v_store(w->bias + k * LINE + lane, v_set1(0));
    }
}

/* The same where no option is set. */
static NOINLINE void
differentiate_plainly(backward_work *w, ptrdiff_t line, ptrdiff_t n, ptrdiff_t lane)
{
    differentiate_lanes(w, line, n, NULL, NULL, lane, true);
}

/* The spans of all tiles, and all their keys in the lines; instructions take whole SUM_TERMS of
 * them. */
static NOINLINE void
differentiate(backward_work *w, const block *b, const span *spans, const span *s)
{
    bool drops = w->g->attention.dropout > 0;
    bool plain = !drops && w->task.bias == NULL && !has_softcap(&w->g->attention);
    ptrdiff_t n_lines = round_up(s->n, SUM_TERMS);

    if (w->task.bias != NULL) {
        transpose_bias(w, b, s);
    }
    for (ptrdiff_t lane = 0; lane < w->task.n_rows; lane += LANES) {
        const span *seen = &spans[lane / WIDTH];
        ptrdiff_t first = seen->first - s->first, end = first + seen->n;
        ptrdiff_t from = first, to = end; /* with options, or hidden from some rows */
        if (plain) {
            to = seen->masked ? seen->end_hidden - s->first : first;
            to = least(round_up(to, TERMS), end);
            from = seen->masked ? (seen->hidden - s->first) / TERMS * TERMS : first;
        }
        ptrdiff_t key = s->first - b->first + from;
        clear_lanes(w, 0, first, lane);
        differentiate_plainly(w, first, from - first, lane);
        differentiate_lanes(w, from, to - from,
                            seen->masked ? w->rows.see_lanes + key : NULL,
                            drops ? w->rows.keep_lanes + key : NULL, lane, false);
        differentiate_plainly(w, to, end - to, lane);
        clear_lanes(w, round_up(end, TERMS), n_lines, lane);
    }
}

#endif
