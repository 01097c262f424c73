/* Matrices of integers with scales, which linear products take in place of floats. */
#ifndef ATTN_CORE_QUANTIZED_H
#define ATTN_CORE_QUANTIZED_H

#include "core/array.h"

#include <string.h>

/* Part of the bit contract, beside core/limits.h. No group has more rows: an int32 holds the sum of
 * as many products of two bytes. */
#define ATTN_MAX_GROUP 65536
#define ATTN_QUAD 4      /* rows of W whose codes are next to each other */
#define ATTN_CODE_ROWS 8 /* rows are padded to a multiple of it, or of more */
#define ATTN_LEAST_GROUP 16
#define ATTN_INTEGER_ROWS 128 /* of x, that a task loads at a time, at most */
#define ATTN_CODE_VALUES 16
#define ATTN_RADIX                                                                     \
    65024 /* 254 * 256: two digits of 8 bits hold numbers below half of it */
#define ATTN_MOST_UPPER 127

/* Scales, or minimums: one for each group and column, (panels, groups, ATTN_PANEL_COLUMNS).
 * Bytes e are powers of two, 2^(e - 128), up to 254; that is half of E8M0's, as in OCP's MX
 * forms. With two levels, as in GGUF's K forms, `fine` is int8, and each is multiplied by a number of
 * `coarse` that several groups share, (panels, groups / groups_per_block rounded up,
 * ATTN_PANEL_COLUMNS). */
typedef struct {
    const char *fine; /* NULL: there are none */
    attn_dtype dtype; /* of `fine`, where there is one level; ATTN_I8: powers of two */
    const uint16_t *coarse; /* float16; NULL: one level */
} attn_factors;

/* W = scale * (code - zero) + minimum. Rows of W are in groups; the last one may be shorter. Rows
 * are padded to a multiple of attn_code_unit, and columns to whole panels, with codes that are
 * `zero`.
 *
 * Codes of 8 bits are int8, (panels, rows / ATTN_QUAD, ATTN_PANEL_COLUMNS, ATTN_QUAD). Other codes
 * are unsigned. Their lower four bits are two codes to a byte, whose upper half belongs to the row
 * four rows later: (panels, rows / ATTN_CODE_ROWS, ATTN_PANEL_COLUMNS, ATTN_QUAD). With 5 and 6 bits
 * the upper bits of a unit of rows follow its lower ones, as (ATTN_PANEL_COLUMNS, ATTN_QUAD) bytes:
 * byte i of a column has those of rows i, i + 4, i + 8 ... of the unit, from its lowest bit on.
 *
 * With `values` a code of 4 bits stands for one of 16 numbers, which takes its place, and whose zero
 * is 0. */
typedef struct {
    int bits; /* 8, 6, 5 or 4 */
    int zero; /* 0 where there are 8, and with values */
    const int8_t
        *values; /* (ATTN_CODE_VALUES) of codes of 4 bits; NULL: codes are numbers */
    ptrdiff_t group; /* a multiple of ATTN_LEAST_GROUP and of attn_code_unit; above
                      * ATTN_BLOCK, of that */
    ptrdiff_t groups_per_block;
    const char *codes;
    attn_factors scale, minimum;
    bool rounds_rows; /* rows of x are quantised to 8 bits, too */
} attn_quantized;

/* The arithmetic, where x has K numbers and a sum is the product's output before its bias:
 *
 * Without rounds_rows, a group is cut into parts of ATTN_BLOCK terms at most. Each part of x is
 * rounded to integers of up to 23 bits times a power of two: s is the least one, from 2^-126 on,
 * for which max |x| <= ATTN_MOST_UPPER * ATTN_RADIX * s. An integer is ATTN_RADIX * upper + lower:
 * `upper` is nearest to x / s * (1.0f / ATTN_RADIX), `lower` to x / s - ATTN_RADIX * upper, ties to
 * even. The products of each with codes (less `zero`) are added up exactly. They are
 * products = s * fma(ATTN_RADIX, (float)uppers, (float)lowers), and
 * sum = fma(scale, products, sum); with minimums, then
 * sum = fma(minimum, s * (float)total, sum), of the integers' total. s is NaN if a number of the
 * part is not finite.
 *
 * With it, each group of x is rounded to integers from -127 to 127 times s = max |x| / 127,
 * those nearest to x / s, ties to even; their products with codes are added up exactly, and
 * sum = fma(s * scale, (float)products, sum); with minimums, then
 * sum = fma(minimum, s * (float)total, sum), of the integers' total. All of a group is 0 if s
 * is 0; s is NaN if a number of the group is not finite. */

/* The power of two that a byte of scales is. */
static inline float
attn_power_of(uint8_t e)
{
    uint32_t twice = e == 0 ? UINT32_C(1) << 22 : (uint32_t)e << 23;
    float power;

    memcpy(&power, &twice, sizeof power);
    return power * 0.5f;
}

/* Rows of a unit of codes. With 5 and 6 bits their upper bits fill ATTN_QUAD bytes. */
static inline ptrdiff_t
attn_code_unit(int bits)
{
    return bits == 5 || bits == 6 ? 8 / (bits - 4) * ATTN_QUAD : ATTN_CODE_ROWS;
}

static inline ptrdiff_t
attn_code_rows(ptrdiff_t n_in, int bits)
{
    ptrdiff_t unit = attn_code_unit(bits);
    return (n_in + unit - 1) / unit * unit;
}

/* Writes what a column of n_rows stands for, scale * code + minimum, each step rounded. */
void attn_dequantize_column(const attn_quantized *, ptrdiff_t n_rows, ptrdiff_t column,
                            float *to);

#endif
