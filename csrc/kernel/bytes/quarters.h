/* Row form where a CPU multiplies unsigned bytes by signed ones, for four rows at a time. Codes are
 * digits, as in kernel/bytes/digits.h. In products with keys, which get 128 added, a row's codes
 * are a quarter of a vector, and so are its sums. Weights are rarely negative: then their digits
 * are unsigned, and values stay as they are. */
#ifndef ATTN_KERNEL_BYTES_QUARTERS_H
#define ATTN_KERNEL_BYTES_QUARTERS_H

#include "kernel/bytes/digits.h"

enum {
    FOUR_ROWS = 4 * QUARTER, /* bytes of a digit of a quarter of dimensions */
    ZIPPED = QUAD * LANES /* columns of values whose sums are put in order together */
};

/* The digits of n dimensions of four rows of codes: the high ones of QUARTER dimensions, then the
 * low ones. */
static INLINE void
split_quarters(const char *codes, ptrdiff_t code_row, ptrdiff_t n, char *digits)
{
    for (int r = 0; r < QUAD; r++, codes += 2 * code_row, digits += QUARTER) {
        char *to = digits;
        for (ptrdiff_t d = 0; d < n; d += NARROW, to += 4 * FOUR_ROWS) {
            v_shorts x = v_load_shorts(codes + 2 * d);
            v_store_halves(to, 2 * FOUR_ROWS, v_high_digits(x));
            v_store_halves(to + FOUR_ROWS, 2 * FOUR_ROWS, v_low_digits(x));
        }
    }
}

/* The sums over n dimensions of BYTE_PANEL keys, `row` bytes apart: vectors of FOLD of them, whose
 * quarters are rows. */
static INLINE void
sum_quarters(const char *keys, ptrdiff_t row, const char *digits, ptrdiff_t n,
             v_sums excess, v_sums *sums)
{
    const char *others = keys + QUAD * row;
    v_sums high[BYTE_PANEL], low[BYTE_PANEL];

    clear_sums(high, low, BYTE_PANEL);
    for (ptrdiff_t d = 0; d < n; d += QUARTER, digits += 2 * FOUR_ROWS) {
        v_shorts x = v_load_shorts(digits), y = v_load_shorts(digits + FOUR_ROWS);
        UNROLLED for (int i = 0; i < BYTE_PANEL; i++)
        {
            const char *at = i < QUAD ? keys : others;
            v_shorts key = v_add_128(v_load_quarters(at + i % QUAD * row + d));
            high[i] = v_add_quads(high[i], key, x);
            low[i] = v_add_quads(low[i], key, y);
        }
    }
    UNROLLED for (int i = 0; i < BYTE_PANEL; i++)
    {
        low[i] = v_join_digits(high[i], low[i]);
    }
    UNROLLED for (int i = 0; i < BYTE_PANEL / FOLD; i++)
    {
        sums[i] = v_less_sums(v_fold(low + i * FOLD), excess);
    }
}

/* What 128 more adds to the sums over n dimensions. */
static INLINE v_sums
excess_of_quarters(const char *digits, ptrdiff_t n)
{
    v_sums high = v_zero_sums(), low = v_zero_sums();

    for (ptrdiff_t d = 0; d < n; d += QUARTER, digits += 2 * FOUR_ROWS) {
        v_shorts all = v_add_128(v_zero_sums());
        high = v_add_quads(high, all, v_load_shorts(digits));
        low = v_add_quads(low, all, v_load_shorts(digits + FOUR_ROWS));
    }
    v_sums sum = v_join_digits(high, low), same[FOLD] = {sum, sum, sum, sum};
    return v_fold(same);
}

/* Scores of all keys, of n dimensions from `first` on, with four rows from r on. Before the last
 * dimensions, they lack their factors. */
static INLINE void
score_quarters(const attn_byte_product *m, ptrdiff_t r, ptrdiff_t first, ptrdiff_t n)
{
    _Alignas(CACHE_LINE) char digits[2 * ATTN_CODE_DIMS * QUAD];
    _Alignas(CACHE_LINE) char slab[BYTE_PANEL * ATTN_CODE_DIMS + QUARTER];
    bool last = first + n >= m->bytes.dim;

    split_quarters(m->codes + 2 * (r * m->code_row + first), m->code_row, n, digits);
    v_sums excess = excess_of_quarters(digits, n);
    for (ptrdiff_t k = 0; k < m->bytes.n; k += LANES) {
        v_sums sums[LANES / FOLD];
        for (int i = 0; i < LANES; i += BYTE_PANEL) {
            const char *keys = slab;
            ptrdiff_t row = ATTN_CODE_DIMS, at = k + i, end = at + BYTE_PANEL;
            for (; r == 0 && first == 0 && at < end && at < m->bytes.n; at++) {
                prefetch_after(&m->bytes, at);
            }
            if (n % QUARTER != 0 || end > m->bytes.n) {
                copy_panel(&m->bytes, k + i, first, n, slab);
            } else {
                row = m->bytes.row;
                keys = (const char *)m->bytes.at + (k + i) * row + first;
            }
            sum_quarters(keys, row, digits, n, excess, sums + i / FOLD);
        }
        v_transpose_sum_quarters(sums);
        UNROLLED for (int i = 0; i < QUAD; i++)
        {
            float *to = m->sums + (r + i) * m->line + k;
            v_real score = v_float_sums(sums[i]);
            if (first > 0) {
                score = v_add(v_load(to), score);
            }
            if (last) {
                score = v_mul(score, v_set1(m->factor[r + i]));
                score = v_mul(score, v_load(m->scale + k));
            }
            v_store(to, score);
        }
    }
}

static NOINLINE void
score_four_rows(const attn_byte_product *product)
{
    const attn_byte_product m = *product; /* which no store may change */

    for (ptrdiff_t r = 0; r < m.n_rows; r += QUAD) {
        ptrdiff_t first = 0;
        do { /* there may be no dimension */
            ptrdiff_t left = m.bytes.dim - first;
            ptrdiff_t n = left < ATTN_CODE_DIMS ? left : ATTN_CODE_DIMS;
            score_quarters(&m, r, first, n);
            first += n;
        } while (first < m.bytes.dim);
    }
}

/* The digits of n codes of four rows. False if one is negative: these are unsigned. */
static INLINE bool
split_weights(const char *codes, ptrdiff_t code_row, ptrdiff_t n, char *digits)
{
    bool negative = false;

    for (int i = 0; i < QUAD; i++, codes += 2 * code_row, digits += 2 * ATTN_BLOCK) {
        for (ptrdiff_t k = 0; k < n; k += NARROW) {
            v_shorts x = v_load_shorts(codes + 2 * k);
            negative |= v_has_negative(x);
            v_store_shorts(digits + 2 * k, v_split_unsigned(x));
        }
    }
    return !negative;
}

/* Sums of ZIPPED columns from d on, for four rows from r on: of two vectors of each row, which are
 * stored as integers, or of the other two; then all four are put in the order of columns.
 * Meanwhile, weights from *chained on are added to their totals, `links` after each quad, and
 * rows that are read later are prefetched. */
static INLINE void
sum_zipped(const attn_byte_product *m, ptrdiff_t r, ptrdiff_t d, const char *digits,
           ptrdiff_t *chained, ptrdiff_t links, bool others)
{
    ptrdiff_t row = m->bytes.row, link = *chained;
    v_sums high[2 * QUAD], low[2 * QUAD];
    float total[QUAD];

    memcpy(total, m->totals + r, sizeof total);
    clear_sums(high, low, 2 * QUAD);
    for (ptrdiff_t k = 0; k < m->bytes.n; k += QUAD, digits += 2 * QUAD) {
        const int8_t *at[QUAD] = {m->bytes.at + k * row + d};
        v_shorts x[2];
        UNROLLED for (int i = 1; i < QUAD; i++)
        {
            at[i] = at[i - 1] + (k + i < m->bytes.n ? row : 0); /* times 0 */
        }
        __asm__("" : "+r"(others)); /* or compilers make a loop for either */
        v_zip_eights(x, at, others);
        UNROLLED for (int i = 0; i < 2 * QUAD; i++)
        {
            const char *quad = digits + i / 2 * 2 * ATTN_BLOCK;
            high[i] = v_add_quads(high[i], v_set1_shorts(quad), x[i % 2]);
            low[i] = v_add_quads(low[i], v_set1_shorts(quad + QUAD), x[i % 2]);
        }
        for (ptrdiff_t end = link + links; link < end && link < m->bytes.n; link++) {
            if (r == 0) {
                prefetch_after(&m->bytes, link);
            }
            UNROLLED for (int i = 0; i < QUAD; i++)
            {
                total[i] += m->weights[(r + i) * ATTN_BLOCK + link];
            }
        }
    }
    memcpy(m->totals + r, total, sizeof total);
    *chained = link;
    UNROLLED for (int i = 0; i < QUAD; i++)
    {
        float *to = m->sums + (r + i) * m->line + d;
        v_sums sum[QUAD];
        UNROLLED for (int v = 0; v < 2; v++)
        {
            sum[v] = v_load_sums(to + v * LANES);
            sum[v + 2] = v_join_digits(high[2 * i + v], low[2 * i + v]);
            v_store_sums(to + v * LANES, sum[v + 2]);
        }
        if (!others) {
            continue;
        }
        v_transpose_sum_quarters(sum);
        UNROLLED for (int v = 0; v < QUAD; v++)
        {
            v_real x = v_mul(v_float_sums(sum[v]), v_set1(m->unit[r + i]));
            v_store(to + v * LANES, v_mul(x, v_set1(m->back[r + i])));
        }
    }
}

static NOINLINE void
sum_four_rows(const attn_byte_product *product)
{
    _Alignas(CACHE_LINE) char digits[QUAD * 2 * ATTN_BLOCK];
    const attn_byte_product m = *product; /* which no store may change */
    ptrdiff_t links = m.bytes.dim < 2 * ZIPPED ? 2 : 1;

    for (ptrdiff_t r = 0; r < m.n_rows; r += QUAD) {
        const char *codes = m.codes + 2 * r * m.code_row;
        ptrdiff_t d = 0, chained = 0;
        if (split_weights(codes, m.code_row, m.bytes.n, digits)) {
            for (; d + ZIPPED <= m.bytes.dim; d += ZIPPED) {
                for (int others = 0; others < 2; others++) {
                    sum_zipped(&m, r, d, digits, &chained, links, others != 0);
                }
            }
        }
        add_weights(&m, r, r + QUAD, chained, m.bytes.n);
        for (; d < m.bytes.dim; d += NARROW) {
            for (ptrdiff_t k = 0; k < m.bytes.n; k += ATTN_CODE_UNIT) {
                sum_narrow_columns(&m, k, r, d, QUAD);
            }
        }
    }
}

#endif
