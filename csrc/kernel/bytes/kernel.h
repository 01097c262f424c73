/* Products of attention with keys and values of int8, and their table. An isa/ file chooses the
 * instruction set, the vocabularies of floats and of shorts, and the sizes, then includes this. */
#ifndef ATTN_KERNEL_BYTES_KERNEL_H
#define ATTN_KERNEL_BYTES_KERNEL_H

#include "kernel/bytes/lanes.h"

#if BYTE_DIGITS
#include "kernel/bytes/digits.h"
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
