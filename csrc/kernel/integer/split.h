/* Numbers as integers of two or three digits, which products with integers multiply exactly. */
#ifndef ATTN_KERNEL_INTEGER_SPLIT_H
#define ATTN_KERNEL_INTEGER_SPLIT_H

#include "kernel/integer/task.h"

/* 2 to the power of n, from -126 to 127. */
static float
power_of_two(int n)
{
    uint32_t bits = (uint32_t)(n + 127) << 23;
    float power;

    memcpy(&power, &bits, sizeof power);
    return power;
}

/* The exponent of the least power of two, from 2^-126 on, that times ATTN_MOST_UPPER * ATTN_RADIX
 * is at least `most`: 22 less than that of `most`, or one more where its fraction is larger than
 * that of the product, which is below 2^23. */
static int
exponent_for(float most)
{
    const float largest = (float)(ATTN_MOST_UPPER * ATTN_RADIX);
    uint32_t bits, fraction;

    memcpy(&fraction, &largest, sizeof fraction);
    memcpy(&bits, &most, sizeof bits);
    int exponent = (int)((bits + (0x7fffff - (fraction & 0x7fffff))) >> 23) - 127 - 22;
    return exponent > -126 ? exponent : -126;
}

/* Terms that have their size, or byte digits. */
static INLINE void
store_digits(void *to, ptrdiff_t at, v_real digits, const bool bytes)
{
#if HAS_SPLIT_BYTES
    if (bytes) {
        v_store_bytes((int8_t *)to + at, digits);
        return;
    }
#endif
    (void)bytes;
    v_store_terms((term *)to + at, digits);
}

/* to = the terms of n finite numbers, as core/quantized.h splits them, in lines a row apart. Digits
 * of 8 bits are nearest, and of two the one with the upper digit above. totals[i]: the terms of line
 * i, added up; floats hold that exactly. It is NaN if a number is. */
static INLINE void
split_numbers(void *to, ptrdiff_t row, const float *x, ptrdiff_t n, float by,
              float totals[SPLIT_BYTES], const bool bytes)
{
    const int n_digits = bytes ? SPLIT_BYTES : DIGITS;
    v_real sums[SPLIT_BYTES];

    UNROLLED for (int d = 0; d < n_digits; d++)
    {
        sums[d] = v_set1(0);
    }
    for (ptrdiff_t k = 0; k < n; k += NUMBERS) {
        UNROLLED for (int i = 0; i < NUMBERS; i += LANES)
        {
            v_real digits[SPLIT_BYTES], a = v_mul(v_load(x + k + i), v_set1(by));
            digits[0] = v_round(v_mul(a, v_set1(1.0f / ATTN_RADIX)));
            v_real lower = v_round(v_fma(digits[0], v_set1(-ATTN_RADIX), a));
            if (n_digits == 3) {
                v_real up = v_set1(1.0f / 1024); /* of ties; so none is above 127 */
                digits[1] = v_round(v_fma(lower, v_set1(1.0f / 256), up));
                lower = v_fma(digits[1], v_set1(-256), lower);
            }
            digits[n_digits - 1] = lower;
            UNROLLED for (int d = 0; d < n_digits; d++)
            {
                sums[d] = v_add(sums[d], digits[d]);
                store_digits(to, d * row + k + i, digits[d], bytes);
            }
        }
    }
    UNROLLED for (int d = 0; d < n_digits; d++)
    {
        totals[d] = v_reduce_add(sums[d]);
    }
}

#endif
