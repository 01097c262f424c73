/* The rows of x that a task with a quantised matrix multiplies, as they are or rounded. */
#ifndef ATTN_KERNEL_INTEGER_ROWS_H
#define ATTN_KERNEL_INTEGER_ROWS_H

#include "kernel/integer/task.h"

/* The scale of n numbers, max |x| / 127: 0 where that is, NaN if one is not finite. Zeros
 * fill them up to a multiple of NUMBERS, here and below. */
static float
scale_of(const float *x, ptrdiff_t n)
{
    v_real most = v_set1(0), not_finite = v_set1(0);

    for (ptrdiff_t k = 0; k < n; k += LANES) {
        v_real a = v_load(x + k);
        most = v_max(most, v_max(a, v_sub(v_set1(0), a)));
        not_finite = v_fma(a, v_set1(0), not_finite);
    }
    if (v_bits_of(v_is_nan(not_finite)) != 0) {
        return NAN;
    }
    return v_reduce_max(most) / 127;
}

/* to = n numbers divided by their scale, rounded to integers from -127 to 127; their total,
 * which floats hold exactly. Of a subnormal scale few bits are left, so that quotients may be
 * larger. */
static int32_t
round_numbers(term *to, const float *x, ptrdiff_t n, float scale)
{
    const v_real least = v_set1(-127), zero = v_set1(0), by = v_set1(scale);
    v_real total = zero;
    float totals[LANES];
    int32_t sum = 0;

    if (!(scale > 0)) {
        memset(to, 0, (size_t)n * sizeof *to);
        return 0;
    }
    for (ptrdiff_t k = 0; k < n; k += LANES) {
        v_real a = v_round(v_div(v_load(x + k), by));
        a = v_max(v_sub(zero, v_max(a, least)), least);
        total = v_sub(total, a);
        v_store_terms(to + k, v_sub(zero, a));
    }
    v_store(totals, total);
    for (int i = 0; i < LANES; i++) {
        sum += (int32_t)totals[i];
    }
    return sum;
}

/* Rounds row r, part by part. */
static void
round_row(integer_work *w, ptrdiff_t r)
{
    for (ptrdiff_t p = 0; p < w->n_parts; p++) {
        ptrdiff_t at = p * w->part, sum = r * w->n_parts + p,
                  n = rows_of_parts(w, p, 1);
        float scale = scale_of(w->reals + at, n);
        int32_t total =
            round_numbers(w->terms + r * w->row + at, w->reals + at, n, scale);
        w->scales[sum] = scale;
        w->begins[sum] = -OFFSET * total;
        if (w->q->minimum.fine != NULL) {
            w->minimum_by[sum] = scale * (float)total;
        }
    }
}

/* The sum of each part of row r, which minimums are multiplied by. */
static void
add_up_row(integer_work *w, ptrdiff_t r)
{
    for (ptrdiff_t p = 0; p < w->n_parts && w->q->minimum.fine != NULL; p++) {
        const float *x = w->reals + r * w->row + p * w->part;
        float total = 0;
        for (ptrdiff_t k = 0; k < rows_of_parts(w, p, 1); k++) {
            total += x[k];
        }
        w->minimum_by[r * w->n_parts + p] = total;
    }
}

/* Loads n rows from number `first` on, filled up with zeros. */
static void
load_integer_rows(integer_work *w, const attn_linear_kernel *floats, ptrdiff_t first,
                  ptrdiff_t n)
{
    ptrdiff_t n_in = w->l->n_in, row = w->row;
    bool rounds = w->q->rounds_rows;

    for (ptrdiff_t r = 0; r < n; r++) {
        float *to = w->reals + (rounds ? 0 : r * row);
        floats->load_rows(w->l, first + r, 1, to, row);
        memset(to + n_in, 0, (size_t)(row - n_in) * sizeof *to);
        if (rounds) {
            round_row(w, r);
        } else {
            add_up_row(w, r);
        }
    }
}

#endif
