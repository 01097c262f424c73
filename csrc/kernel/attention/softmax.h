/* From products to logits, and from logits to the running softmax: maxima, exponentials and
 * their sums. */
#ifndef ATTN_KERNEL_ATTENTION_SOFTMAX_H
#define ATTN_KERNEL_ATTENTION_SOFTMAX_H

#include "kernel/attention/rows.h"
#include "kernel/math/exp.h"

/* A block's scores: lines of n_vec vectors; tile form has a line for each key, row form
 * one for each row. */
typedef struct {
    real *at;
    ptrdiff_t line;       /* reals from line to line */
    const real *bias;     /* of the same lines and vectors; or NULL */
    ptrdiff_t bias_line;  /* reals from line to line */
    const uint64_t *bits; /* what may be seen, from the first lane on; or NULL */
    ptrdiff_t bits_line;  /* words from line to line */
    ptrdiff_t first_bit;  /* of the first lane */
    ptrdiff_t n_lines;
    int n_vec;
} strip;

static bool
has_softcap(const attn_problem *p)
{
    return p->softcap > 0;
}

/* cap * tanh(x / cap), and its derivative. */
static INLINE v_real
cap_softly(v_real x, v_real cap, v_real *grad)
{
    v_real t = tanh_of(v_div(x, cap));

    *grad = v_fma(v_sub(v_set1(0), t), t, v_set1(1));
    return v_mul(cap, t);
}

/* Is a positive factor all that turns scores into logits? */
static bool
are_plain_scores(const task_rows *t, real scale)
{
    return t->task->bias == NULL && !has_softcap(t->p) && scale > 0;
}

/* From products to logits: scale, softcap, bias, and -inf where a row may not see a key. */
static INLINE void
finish_scores(const strip *s, real scale, const attn_problem *p)
{
    v_real minus_inf = v_set1((real)-INFINITY);
    bool capped = has_softcap(p);

    for (ptrdiff_t i = 0; i < s->n_lines; i++) {
        for (int v = 0; v < s->n_vec; v++) {
            ptrdiff_t at = i * s->line + v * LANES;
            v_real x = v_mul(v_load(s->at + at), v_set1(scale));
            __asm__("" : "+r"(capped)); /* or compilers make a loop for either */
            if (capped) {
                v_real grad; /* unused */
                x = cap_softly(x, v_set1((real)p->softcap), &grad);
            }
            if (s->bias != NULL) {
                x = v_add(x, v_load(s->bias + i * s->bias_line + v * LANES));
            }
            if (s->bits != NULL) {
                ptrdiff_t bit = s->first_bit + v * LANES;
                uint64_t word = s->bits[i * s->bits_line + bit / 64];
                x = v_select(v_mask_of(word >> (bit % 64)), x, minus_inf);
            }
            v_store(s->at + at, x);
        }
    }
}

/* The maximum that exponents are taken relative to: never -inf, which has no differences. */
static INLINE v_real
finite_floor(v_real max)
{
    return v_max(max, v_set1(-REAL_MAX));
}

/* Raises the running maxima of a vector of rows to at least `top`; sum and output so far
 * are to be multiplied by the result. */
static INLINE v_real
raise_max(real *max, v_real top)
{
    v_real before = v_load(max);
    v_real after = v_max(top, before);

    v_store(max, after);
    return exp_of(v_sub(before, finite_floor(after)));
}

/* top[v] = the largest score of a vector of rows. Maxima wait for one another, so there are
 * MAXIMA of them for each vector. */
static INLINE void
find_tops(v_real *top, const real *scores, ptrdiff_t n_keys, const int n_vec)
{
    enum { MAXIMA = 4 };
    v_real part[MAXIMA * TILE_VECTORS];
    ptrdiff_t k = 0;

    UNROLLED for (int i = 0; i < MAXIMA * n_vec; i++)
    {
        part[i] = v_set1((real)-INFINITY);
    }
    for (; k + MAXIMA <= n_keys; k += MAXIMA) {
        UNROLLED for (int i = 0; i < MAXIMA * n_vec; i++)
        {
            const real *line = scores + (k + i / n_vec) * WIDTH;
            part[i] = v_max(v_load(line + i % n_vec * LANES), part[i]);
        }
    }
    for (; k < n_keys; k++) {
        UNROLLED for (int v = 0; v < n_vec; v++)
        {
            part[v] = v_max(v_load(scores + k * WIDTH + v * LANES), part[v]);
        }
    }
    UNROLLED for (int v = 0; v < n_vec; v++)
    {
        v_real low = v_max(part[n_vec + v], part[v]);
        top[v] = v_max(v_max(part[3 * n_vec + v], part[2 * n_vec + v]), low);
    }
}

/* Scores of some vectors of rows on their way to exponentials. */
typedef struct {
    v_real factor, base[TILE_VECTORS], total[TILE_VECTORS];
} exponentials;

/* Raises the running maxima of n_vec vectors of rows to those of the scores, times scale. Lines
 * are taken `step` at a time; a weight of 0 makes the last of them whole. */
static INLINE exponentials
begin_exponentials(real *scores, ptrdiff_t n_keys, real scale, real *max, real *rescale,
                   const int n_vec, const int step)
{
    exponentials e = {.factor = v_set1(exponent_scale(scale))};

    find_tops(e.base, scores, n_keys, n_vec);
    UNROLLED for (int v = 0; v < n_vec; v++)
    {
        v_store(rescale + v * LANES,
                raise_max(max + v * LANES, v_mul(e.base[v], v_set1(scale))));
        e.base[v] = exponent_base(v_load(max + v * LANES));
        e.total[v] = v_set1(0);
        if (n_keys % step != 0) {
            v_store(scores + n_keys * WIDTH + v * LANES, v_set1((real)-INFINITY));
        }
    }
    return e;
}

/* Exponentials of `step` lines of scores from key k on, relative to the running maximum. */
static INLINE void
exponentiate_lines(exponentials *s, real *scores, ptrdiff_t k, const int n_vec,
                   const int step)
{
    UNROLLED for (int v = 0; v < n_vec; v++)
    {
        const real *at = scores + k * WIDTH + v * LANES;
        v_real e[TERMS];
        UNROLLED for (int i = 0; i < step; i++)
        {
            e[i] = operand_exp(v_load(at + i * WIDTH), s->factor, s->base[v]);
            s->total[v] = v_add(s->total[v], e[i]);
        }
        store_weights(scores + k / step * WIDTH + v * LANES, e, step);
    }
}

/* Adds the exponentials to the running sum. */
static INLINE void
end_exponentials(const exponentials *s, real *sum, const real *rescale, const int n_vec)
{
    UNROLLED for (int v = 0; v < n_vec; v++)
    {
        v_real before = v_load(sum + v * LANES);
        v_store(sum + v * LANES,
                v_fma(before, v_load(rescale + v * LANES), s->total[v]));
    }
}

/* Turns the scores of n_vec vectors of rows, times scale, into exponentials relative to
 * the running maximum, and adds them to the running sum. */
static INLINE void
exponentiate_lanes(real *scores, ptrdiff_t n_keys, real scale, real *max, real *sum,
                   real *rescale, const int n_vec)
{
    exponentials e = begin_exponentials(scores, n_keys, scale, max, rescale, n_vec, 1);

    for (ptrdiff_t k = 0; k < n_keys; k++) {
        exponentiate_lines(&e, scores, k, n_vec, 1);
    }
    end_exponentials(&e, sum, rescale, n_vec);
}

/* The weight of a score, times scale its logit, in the final softmax; 0 for -inf whatever
 * the row holds. */
static INLINE v_real
weight_of(v_real score, real scale, v_real max, v_real inverse_sum)
{
    v_real e = weight_exp(score, v_set1(exponent_scale(scale)), exponent_base(max));
    v_real weight = v_mul(e, inverse_sum);

    weight = v_select(v_less(score, v_set1(-REAL_MAX)), v_set1(0), weight);
    return quiet_nan_or(weight);
}

#endif
