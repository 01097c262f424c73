/* Attention over keys and values of int8: exact sums of products of integers. Each tier has a
 * kernel for them, which the kernel of float32 calls. */
#ifndef ATTN_CORE_BYTES_H
#define ATTN_CORE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Part of the bit contract, beside core/limits.h. The rows that bytes are multiplied by, of
 * queries and of a block's weights, are rounded to integers of 16 bits, their codes. With the
 * largest |x| of a row's numbers, `most`, and x' = x * back,
 *
 *     back = 1, or 2^100 where most < 2^-100, so that quotients are no subnormal numbers;
 *     code = the integer nearest to x' * (32639 / (most * back)), ties to even;
 *     unit = most * back / 32639; then x is about code * unit / back.
 *
 * All codes and the unit are 0 if all numbers are. Rows with a number that is not finite have no
 * codes: they are multiplied in float. Sums of products of codes and bytes are exact, so they
 * have no order:
 *
 *     score  = (float)sum * (unit * scale / back) * key_scale, of up to 512 dimensions; of more,
 *              the floats of each 512 are added in ascending order;
 *     values = (float)sum * unit / back, of a block of ATTN_BLOCK keys.
 *
 * 32639 is 127 * 256 + 127, so that a code is two signed bytes as well. */
#define ATTN_LARGEST_CODE 32639

/* Keys and values may be ATTN_I16 as well, both of them: a layer rounds its own to codes as above,
 * but with ATTN_LARGEST_SHORT in place of 32639, and `back` times the unit is a key's scale, or a
 * value's. Queries become codes with the same constant. Then
 *
 *     score = (float)sum * (unit * scale / back) * key_scale, as above;
 *
 * and with e^(logit - top), for the largest logit `top` that a row has in a block, and `most`, the
 * largest scale of a value that the row sees there,
 *
 *     code   = the integer nearest to e^(logit - top) * (value_scale * (ATTN_LARGEST_WEIGHT / most)),
 *     values = (float)sum * (most / ATTN_LARGEST_WEIGHT) * e^(top - max), of a block.
 *
 * The sum of the weights is multiplied by e^(top - max), too. Scales are NaN, and so are scores
 * and values, where a vector has a number that is not finite. */
#define ATTN_LARGEST_SHORT 2047  /* ATTN_CODE_DIMS * 2047 * 2047 < 2^31 */
#define ATTN_LARGEST_WEIGHT 8191 /* ATTN_BLOCK * 8191 * 2047 < 2^31 */
#define ATTN_CODE_DIMS 512       /* 512 * 32639 * 128 < 2^31 */
#define ATTN_CODE_UNIT 32 /* codes of a row are filled up with zeros to its multiple */

/* Rows of bytes, of keys or of values, whose columns are adjacent; or of shorts, whose rows
 * are filled up to a multiple of ATTN_CODE_UNIT columns, which have no influence. */
typedef struct {
    const int8_t *at;
    bool are_shorts;
    ptrdiff_t row; /* bytes from row to row */
    ptrdiff_t n;   /* rows, up to ATTN_BLOCK */
    ptrdiff_t dim;
    const int8_t *next; /* rows that are read after these, to be prefetched; or NULL */
} attn_byte_rows;

/* A product of codes and bytes. In row form there are n_rows rows of codes, 1, 2, 4 or 8; in tile
 * form they are lanes, n_lanes of them, whole vectors, in lines of `line` lanes. */
typedef struct {
    attn_byte_rows bytes;
    /* Row form: (n_rows, code_row) of int16; tile form: (pairs, line) of two, of neighbouring
     * dimensions or keys, or of the four digits that two of them have. */
    const char *codes;
    ptrdiff_t code_row; /* codes from row to row */
    ptrdiff_t line;     /* floats from row to row of the result, or from line to line */
    int n_rows, n_lanes;
    const float *factor;      /* of scores: (rows) unit * scale / back */
    const float *scale;       /* of scores: (n) the keys' */
    const float *unit, *back; /* of values: (rows), the second as what to multiply by */
    /* Row form, of values: (n_rows, ATTN_BLOCK) weights without the values' scales, and (n_rows)
     * what they are added to. */
    const float *weights;
    float *totals;
    /* Tile form, of values: (line) what the sums so far are multiplied by, or NULL: there are
     * none. */
    const float *keep;
    /* Scores (rows, line) or (keys, line); values (rows, line) or (Dv, line). */
    float *sums;
} attn_byte_product;

typedef struct {
    /* Rounds a row of n numbers, which zeros fill up to a multiple of ATTN_CODE_UNIT as they do
     * its codes, to codes of up to `largest`. `to` may be where x is. False, with nothing stored
     * and a unit of 0, if a number is not finite. */
    bool (*round_row)(const float *x, ptrdiff_t n, float largest, void *to, float *unit,
                      float *back);
    /* The largest |x| of n lines in n_lanes lanes, `line` lanes apart. Lanes with a
     * number that is not finite get 0; returns a bit for each of them. */
    uint64_t (*find_lanes)(const float *x, ptrdiff_t n, ptrdiff_t line, int n_lanes,
                           float *most);
    /* Rounds these lanes, whose largest are in `unit`: pairs of codes, or their digits, take the
     * place of x, one line for two. */
    void (*round_lanes)(float *x, ptrdiff_t n, ptrdiff_t line, int n_lanes, float *unit,
                        float *back);
    /* Turns a row of n codes, a multiple of ATTN_CODE_UNIT, into digits for products of lanes
     * with bytes; NULL where these take codes. */
    void (*split_row)(void *codes, ptrdiff_t n);
    void (*score_rows)(const attn_byte_product *);
    void (*score_lanes)(const attn_byte_product *);
    /* Adds weights to their totals as well, in ascending order, beside the products. */
    void (*sum_rows)(const attn_byte_product *);
    void (*sum_lanes)(const attn_byte_product *);
} attn_byte_kernel;

/* The same products of lanes with bytes on a matrix unit, n of them, where the kernel splits rows;
 * they differ in rows of bytes. False, with nothing done, for those that it does not take. */
typedef struct {
    bool (*score_lanes)(const attn_byte_product *, int n);
    bool (*sum_lanes)(const attn_byte_product *, int n);
} attn_byte_unit;

#endif
