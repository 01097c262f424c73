/* The rows of x that a task with a quantised matrix multiplies, rounded to integers. */
#ifndef ATTN_KERNEL_INTEGER_ROWS_H
#define ATTN_KERNEL_INTEGER_ROWS_H

#include "kernel/integer/split.h"
#include "kernel/integer/weights.h"

#include <float.h>

/* The largest |x| of n numbers; any number or NaN if one of them is NaN. Zeros fill them up to a
 * multiple of NUMBERS, here and below. Maxima have no order: several do not wait for each other. */
static float
largest_of(const float *x, ptrdiff_t n)
{
    enum { MAXIMA = 4 };
    v_real most[MAXIMA];
    ptrdiff_t k = 0;

    UNROLLED for (int i = 0; i < MAXIMA; i++)
    {
        most[i] = v_set1(0);
    }
    for (; k + MAXIMA * LANES <= n; k += MAXIMA * LANES) {
        UNROLLED for (int i = 0; i < MAXIMA; i++)
        {
            most[i] = v_max_size(v_load(x + k + i * LANES), most[i]);
        }
    }
    for (; k < n; k += LANES) {
        most[0] = v_max_size(v_load(x + k), most[0]);
    }
    return v_reduce_max(
        v_max_size(v_max_size(most[0], most[1]), v_max_size(most[2], most[3])));
}

static bool
are_finite(const float *x, ptrdiff_t n)
{
    v_real sum = v_set1(0);

    for (ptrdiff_t k = 0; k < n; k += LANES) {
        sum = v_fma(v_load(x + k), v_set1(0), sum);
    }
    return v_bits_of(v_is_nan(sum)) == 0;
}

/* to = n numbers times a normal scale's reciprocal, rounded to integers; `total` is what these
 * add up to, which floats hold exactly, or NaN if a number is. Products differ from quotients by
 * less than 3e-5, since none is above 127: false if one may be so near a tie that its quotient
 * rounds otherwise. Floats near `even` are integers, so that adding it rounds. */
static bool
round_products(term *to, const float *x, ptrdiff_t n, float scale, float *total)
{
    const v_real by = v_set1(1 / scale), minus_by = v_set1(-1 / scale);
    const v_real even = v_set1(3 << 22);
    v_real sum = v_set1(0), farthest = v_set1(0);

    for (ptrdiff_t k = 0; k < n; k += NUMBERS) {
        UNROLLED for (int i = 0; i < NUMBERS; i += LANES)
        {
            v_real a = v_load(x + k + i), whole = v_sub(v_fma(a, by, even), even);
            farthest = v_max_size(v_fma(a, minus_by, whole), farthest);
            sum = v_add(sum, whole);
            v_store_terms(to + k + i, whole);
        }
    }
    *total = v_reduce_add(sum);
    return v_reduce_max(farthest) < 0.49996f;
}

/* The same by division, for any scale above 0. Of a subnormal one few bits are left, so that
 * quotients may be above 127; they become that. */
static float
round_quotients(term *to, const float *x, ptrdiff_t n, float scale)
{
    const v_real least = v_set1(-127), zero = v_set1(0), by = v_set1(scale);
    v_real total = zero;

    for (ptrdiff_t k = 0; k < n; k += LANES) {
        v_real a = v_round(v_div(v_load(x + k), by));
        a = v_max(v_sub(zero, v_max(a, least)), least);
        total = v_sub(total, a);
        v_store_terms(to + k, v_sub(zero, a));
    }
    return v_reduce_add(total);
}

/* to = n numbers divided by their scale, rounded to integers from -127 to 127; returns their total.
 * The scale, max |x| / 127, becomes NaN if a number is not finite. */
static int32_t
round_numbers(term *to, const float *x, ptrdiff_t n, float *scale)
{
    float total;

    if (*scale >= FLT_MIN && *scale <= FLT_MAX) {
        bool is_sure = round_products(to, x, n, *scale, &total);
        if (is_sure && total == total) {
            return (int32_t)total;
        }
    }
    *scale = are_finite(x, n) ? *scale : NAN;
    if (*scale > 0) {
        return (int32_t)round_quotients(to, x, n, *scale);
    }
    memset(to, 0, (size_t)n * sizeof *to);
    return 0;
}

#if HAS_CROSSED
/* What a part's crossed products begin with, of n terms and what fills them up. */
static int32_t
begin_of_crossed(const term *x, ptrdiff_t n)
{
    return -v_own_of_terms(x, (n + NUMBERS - 1) / NUMBERS * NUMBERS);
}
#else
static int32_t
begin_of_crossed(const term *x, ptrdiff_t n)
{
    (void)x, (void)n;
    return 0;
}
#endif

/* Rounds row r, part by part. No part's scale waits for another part's numbers. */
static void
round_row(integer_work *w, ptrdiff_t r, const float *x, bool crossed)
{
    float *scales = w->scales + r * w->n_parts;
    int32_t offset = offset_of(w->q);

    for (ptrdiff_t p = 0; p < w->n_parts; p++) {
        scales[p] = largest_of(x + p * w->part, rows_of_parts(w, p, 1)) / 127;
    }
    for (ptrdiff_t p = 0; p < w->n_parts; p++) {
        ptrdiff_t at = p * w->part, sum = r * w->n_parts + p,
                  n = rows_of_parts(w, p, 1);
        term *to = w->terms + r * w->row + at;
        int32_t total = round_numbers(to, x + at, n, &scales[p]);
        w->begins[sum] = crossed ? begin_of_crossed(to, n) : -offset * total;
        if (w->q->minimum.fine != NULL) {
            w->minimum_by[sum] = scales[p] * (float)total;
        }
    }
    if (PAIRS && is_narrow(form_of(w->q))) {
        narrow_terms(w->terms + r * w->row, w->n_code_rows);
    }
}

/* What two sums of 16 bits begin with, which are one in the end. */
static int32_t
halves_of(int32_t begin)
{
    uint32_t half = (uint32_t)(begin / 2), other = (uint32_t)(begin - begin / 2);
    return (int32_t)(half << 16 | (other & 0xffff));
}

/* Splits row r into terms, part by part; those that are byte digits in as many steps as a part has
 * sums of 16 bits, whose begins are halves. */
static INLINE void
split_row(integer_work *w, ptrdiff_t r, const float *x, const bool bytes)
{
    const int n_digits = bytes ? SPLIT_BYTES : DIGITS;
    const ptrdiff_t size = bytes ? 1 : (ptrdiff_t)sizeof(term);
    const ptrdiff_t step = bytes ? SHORTS_ROWS : w->part;
    const ptrdiff_t n_begins = w->n_parts * attn_divide_up(w->part, step);
    const int32_t offset = offset_of(w->q);
    char *to = (char *)w->terms + r * n_digits * w->row * size;
    int32_t *begins = w->begins + r * n_digits * n_begins;

    for (ptrdiff_t p = 0; p < w->n_parts; p++) {
        ptrdiff_t at = p * w->part, n = rows_of_parts(w, p, 1),
                  sum = r * w->n_parts + p;
        float most = largest_of(x + at, n);
        int exponent = exponent_for(most);
        bool is_finite = most <= FLT_MAX;
        int32_t total = 0;

        for (ptrdiff_t k = at, end = at + n; k < end; k += step, begins++) {
            float totals[SPLIT_BYTES] = {NAN};
            if (is_finite) {
                split_numbers(to + k * size, w->row, x + k,
                              end - k < step ? end - k : step, power_of_two(-exponent),
                              totals, bytes);
            }
            is_finite = totals[0] == totals[0];
            for (int d = 0; d < n_digits; d++) {
                int32_t digits = is_finite ? (int32_t)totals[d] : 0;
                int32_t begin = -offset * digits;
                begins[d * n_begins] = bytes ? halves_of(begin) : begin;
                total += digits * (d == 0                    ? ATTN_RADIX
                                   : d == 1 && n_digits == 3 ? 256
                                                             : 1);
            }
        }
        for (int d = 0; d < n_digits && !is_finite; d++) {
            memset(to + (d * w->row + at) * size, 0, (size_t)(n * size));
        }
        w->scales[sum] = is_finite ? power_of_two(exponent) : NAN;
        if (w->q->minimum.fine != NULL) {
            w->minimum_by[sum] = w->scales[sum] * (float)total;
        }
    }
}

/* A row, filled up with zeros: where it lies if none are missing, else in `to`. */
static const float *
load_integer_row(const integer_work *w, const attn_linear_kernel *floats, ptrdiff_t row,
                 float *to)
{
    const float *x = floats->load_row(w->l, row, to);
    size_t n_in = (size_t)w->l->n_in, n = (size_t)w->row;

    if (x != to && n != n_in) {
        memcpy(to, x, n_in * sizeof *to);
        x = to;
    }
    memset(to + n_in, 0, (n - n_in) * sizeof *to);
    return x;
}

/* Loads n rows from number `first` on. */
static void
load_integer_rows(integer_work *w, const attn_linear_kernel *floats, ptrdiff_t first,
                  ptrdiff_t n)
{
    for (ptrdiff_t r = 0; r < n; r++) {
        const float *x = load_integer_row(w, floats, first + r, w->reals);
        if (w->q->rounds_rows) {
            round_row(w, r, x, are_crossed(w->q, n));
        } else if (are_split_to_bytes(w->q, n)) {
            split_row(w, r, x, true);
        } else {
            split_row(w, r, x, false);
        }
    }
}

#endif
