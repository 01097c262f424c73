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
turn_bias(backward_work *w, const block *b, const span *s)
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

/* One vector of rows for each of n keys, whose first is in line `line`. A weight is
 * e^(score - LSE), at most 1 even where the LSE is rounded. The gradients are those of the
 * products, so that they include the scale and the soft cap's derivative. `plain`: no option
 * is set, and the compiler leaves them out. */
static INLINE void
differentiate_lanes(backward_work *w, ptrdiff_t line, ptrdiff_t n, const uint64_t *bits,
                    const uint64_t *keep, ptrdiff_t lane, const bool plain)
{
    const attn_problem *p = &w->g->attention;
    v_real lse = v_load(w->lse + lane), delta = v_load(w->delta + lane);
    v_real scale = v_set1((real)p->scale), cap = v_set1((real)p->softcap);
    v_real zero = v_set1(0), kept = v_set1(kept_scale(&w->rows));

    for (ptrdiff_t k = 0; k < n; k++) {
        ptrdiff_t at = (line + k) * LINE + lane;
        v_real x = v_load(w->weights + at), product_grad = scale;
        if (TERMS > 1) { /* rows of floats are scaled before */
            x = v_mul(x, scale);
        }
        if (!plain && has_softcap(p)) {
            v_real grad;
            x = cap_softly(x, cap, &grad);
            product_grad = v_mul(scale, grad);
        }
        if (!plain && w->task.bias != NULL) {
            x = v_add(x, v_load(w->bias + at));
        }
        x = v_sub(x, lse);
        v_real weight = exp_of(v_select(v_less(zero, x), zero, x));
        v_real gradient = v_load(w->grad_scores + at), used = weight;
        if (!plain && keep != NULL) {
            v_mask stays = v_mask_of(keep[k] >> lane);
            gradient = v_select(stays, v_mul(gradient, kept), zero);
            used = v_select(stays, v_mul(weight, kept), zero);
        }
        gradient = v_mul(weight, v_sub(gradient, delta));
        if (!plain && bits != NULL) {
            v_mask seen = v_mask_of(bits[k] >> lane);
            used = v_select(seen, used, zero);
            gradient = v_select(seen, gradient, zero);
            product_grad =
                v_select(seen, product_grad, zero); /* NaN through the soft cap */
        }
        if (!plain && w->task.bias != NULL) {
            v_store(w->bias + at, gradient);
        }
        v_store(w->weights + at, used);
        v_store(w->grad_scores + at, v_mul(gradient, product_grad));
    }
}

/* Zeros in lines first .. end - 1 of a vector of rows, which do not see these keys. */
static void
clear_lanes(backward_work *w, ptrdiff_t first, ptrdiff_t end, ptrdiff_t lane)
{
    for (ptrdiff_t at = first * LINE + lane; at < end * LINE; at += LINE) {
        v_store(w->weights + at, v_set1(0));
        v_store(w->grad_scores + at, v_set1(0));
        if (w->task.bias != NULL) {
            v_store(w->bias + at, v_set1(0));
        }
    }
}

/* The same where no option is set. */
static NOINLINE void
differentiate_plainly(backward_work *w, ptrdiff_t line, ptrdiff_t n, ptrdiff_t lane)
{
    differentiate_lanes(w, line, n, NULL, NULL, lane, true);
}

/* The spans of all tiles, and all their keys in the lines. */
static NOINLINE void
differentiate(backward_work *w, const block *b, const span *spans, const span *s)
{
    bool drops = w->g->attention.dropout > 0;
    bool plain = !drops && w->task.bias == NULL && !has_softcap(&w->g->attention);

    if (w->task.bias != NULL) {
        turn_bias(w, b, s);
    }
    for (ptrdiff_t lane = 0; lane < w->task.n_rows; lane += LANES) {
        const span *seen = &spans[lane / WIDTH];
        ptrdiff_t first = seen->first - s->first, end = first + seen->n;
        ptrdiff_t from = first, to = end; /* with options, or hidden from some rows */
        if (plain) {
            to = seen->masked ? seen->end_hidden - s->first : first;
            from = seen->masked ? seen->hidden - s->first : first;
        }
        ptrdiff_t key = s->first - b->first + from;
        clear_lanes(w, 0, first, lane);
        differentiate_plainly(w, first, from - first, lane);
        differentiate_lanes(w, from, to - from,
                            seen->masked ? w->rows.see_lanes + key : NULL,
                            drops ? w->rows.keep_lanes + key : NULL, lane, false);
        differentiate_plainly(w, to, end - to, lane);
        clear_lanes(w, end, s->n, lane);
        pack_factors(w->weights, s->n, LINE, lane, NULL);
        pack_factors(w->grad_scores, s->n, LINE, lane, w->grad_pairs);
    }
}

#endif
