/* Products of attention with keys and values of int8, and their table. An isa/ file chooses the
 * instruction set, the vocabularies of floats and of shorts, and the sizes, then includes this. */
#ifndef ATTN_KERNEL_BYTES_KERNEL_H
#define ATTN_KERNEL_BYTES_KERNEL_H

#include "kernel/bytes/lanes.h"

#if BYTE_DIGITS
#include "kernel/bytes/quarters.h"
#endif

static void
round_lanes(float *x, ptrdiff_t n, ptrdiff_t line, int n_lanes, float *unit,
            float *back)
{
    for (int v = 0; v < n_lanes; v += LANES) {
        rounding r = rounding_of(v_load(unit + v), v_set1(ATTN_LARGEST_CODE));
#if BYTE_DIGITS
        round_quads(x + v, n, line, &r);
#else
        round_pairs(x + v, n, line, &r);
#endif
        v_store(unit + v, r.unit);
        v_store(back + v, r.back);
    }
}

static void
score_lanes(const attn_byte_product *m)
{
#if BYTE_DIGITS
    if (!m->bytes.are_shorts) {
        score_digits(m);
        return;
    }
#endif
    score_pairs(m);
}

static void
sum_lanes(const attn_byte_product *m)
{
#if BYTE_DIGITS
    if (!m->bytes.are_shorts) {
        sum_digits(m);
        return;
    }
#endif
    sum_pairs(m);
}

/* Rows are taken BYTE_ROWS at a time or, if they are fewer, one by one, or two. */
static void
score_rows(const attn_byte_product *m)
{
    if (m->n_rows < BYTE_ROWS) {
        if (!BYTE_DIGITS && BYTE_ROWS > 2 && m->n_rows == 2) {
            score_keys(m, 2);
        } else {
            score_keys(m, 1);
        }
        return;
    }
#if BYTE_DIGITS
    score_four_rows(m);
#else
    score_keys(m, BYTE_ROWS);
#endif
}

static void
sum_rows(const attn_byte_product *m)
{
#if BYTE_DIGITS
    if (m->n_rows >= BYTE_ROWS) {
        sum_four_rows(m);
        return;
    }
#endif
    for (ptrdiff_t k = 0; k < m->bytes.n; k += ATTN_CODE_UNIT) {
        ptrdiff_t left = m->bytes.n - k;
        add_weights(m, 0, m->n_rows, k,
                    k + (left < ATTN_CODE_UNIT ? left : ATTN_CODE_UNIT));
        if (!BYTE_DIGITS && m->n_rows >= BYTE_ROWS) {
            sum_values(m, k, BYTE_ROWS);
        } else if (!BYTE_DIGITS && BYTE_ROWS > 2 && m->n_rows == 2) {
            sum_values(m, k, 2);
        } else {
            sum_values(m, k, 1);
        }
    }
}

extern const attn_byte_kernel BYTE_KERNEL;

const attn_byte_kernel BYTE_KERNEL = {.round_row = round_row,
                                      .find_lanes = find_lanes,
                                      .round_lanes = round_lanes,
#if BYTE_DIGITS
                                      .split_row = split_row,
#endif
                                      .score_rows = score_rows,
                                      .score_lanes = score_lanes,
                                      .sum_rows = sum_rows,
                                      .sum_lanes = sum_lanes};

#endif
