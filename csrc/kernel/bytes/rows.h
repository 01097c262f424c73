/* Row form: scores, the products of few rows of codes with keys, which are read in the order of
 * memory. */
#ifndef ATTN_KERNEL_BYTES_ROWS_H
#define ATTN_KERNEL_BYTES_ROWS_H

#include "kernel/bytes/prefetch.h"
#include "kernel/bytes/round.h"

#ifndef BYTE_SUMS
#define BYTE_SUMS (BYTE_ROWS * FOLD > 8 ? BYTE_ROWS * FOLD : 8) /* in registers */
#endif

enum {
    NARROW = 2 * LANES, /* bytes that are widened at a time */
    MOST_SUMS = BYTE_SUMS
};

/* Copies the last n bytes of a row, fewer than NARROW, behind n_row others. Bytes before `to` may
 * change, NARROW - n of them. */
static INLINE void
copy_end(int8_t *to, const int8_t *at, ptrdiff_t n, ptrdiff_t n_row)
{
    if (n_row + n >= NARROW) { /* faster than a call */
        memcpy(to + n - NARROW, at + n - NARROW, NARROW);
    } else {
        memcpy(to, at, (size_t)n);
    }
}

/* Copies dimensions first .. end - 1 of keys, with zeros up to a whole vector, and points there. */
static NOINLINE void
copy_keys(const int8_t **at, ptrdiff_t first, ptrdiff_t end, int8_t *to)
{
    ptrdiff_t left = (end - first) % NARROW, whole = end - left;

    for (int i = 0; i < FOLD; i++, to += ATTN_CODE_DIMS) {
        const int8_t *from = at[i];
        at[i] = to - first;
        for (ptrdiff_t d = first; d < whole; d += NARROW) {
            memcpy(to + d - first, from + d, NARROW);
        }
        memset(to + whole - first, 0, NARROW);
        copy_end(to + whole - first, from + whole, left, whole);
    }
}

/* sum[row * FOLD + i] = the sums over dimensions d .. end - 1 of some keys, in whole vectors. */
static INLINE void
sum_keys(v_sums *sum, const int8_t *const *at, ptrdiff_t d, ptrdiff_t end,
         const char *codes, ptrdiff_t code_row, const int rows, const int keys)
{
    v_sums sums[MOST_SUMS];
    v_shorts key[FOLD];

    UNROLLED for (int i = 0; i < rows * keys; i++)
    {
        sums[i] = v_zero_sums();
    }
    for (; d < end; d += NARROW) {
        UNROLLED for (int i = 0; i < keys; i++)
        {
            key[i] = v_widen(v_load_narrow(at[i] + d));
        }
        UNROLLED for (int r = 0; r < rows; r++)
        {
            v_shorts query = v_load_shorts(codes + 2 * (r * code_row + d));
            UNROLLED for (int i = 0; i < keys; i++)
            {
                v_sums *to = sums + r * keys + i;
                *to = v_add_pairs(*to, query, key[i]);
            }
        }
    }
    UNROLLED for (int i = 0; i < rows * keys; i++)
    {
        sum[i / keys * FOLD + i % keys] = sums[i];
    }
}

/* folded[row] = the sums over dimensions first .. end - 1 of FOLD keys from k on. Those behind
 * the last key count as the last one. */
static INLINE void
sum_dimensions(const attn_byte_product *m, const char *codes, ptrdiff_t k,
               ptrdiff_t first, ptrdiff_t end, v_sums folded[][LANES / FOLD],
               const int rows)
{
    const int keys = rows * FOLD > MOST_SUMS ? MOST_SUMS / rows : FOLD;
    const attn_byte_rows *b = &m->bytes;
    const int8_t *at[FOLD];
    v_sums sum[BYTE_ROWS * FOLD];
    int8_t copies[NARROW + FOLD * ATTN_CODE_DIMS];

    UNROLLED for (int i = 0; i < FOLD; i++)
    {
        at[i] = b->at + (k + i < b->n ? k + i : b->n - 1) * b->row;
    }
    if ((end - first) % NARROW != 0) {
        copy_keys(at, first, end, copies + NARROW);
    }
    for (int i = 0; i < FOLD; i += keys) {
        sum_keys(sum + i, at + i, first, end, codes, m->code_row, rows, keys);
    }
    UNROLLED for (int r = 0; r < rows; r++)
    {
        folded[r][k % LANES / FOLD] = v_fold(sum + r * FOLD);
    }
}

/* Scores of LANES keys from k on, with some rows from r on. */
static INLINE void
score_some_keys(const attn_byte_product *m, ptrdiff_t k, ptrdiff_t r, const int rows)
{
    const char *codes = m->codes + 2 * r * m->code_row;
    float *to = m->sums + r * m->line + k;
    ptrdiff_t first = 0;

    do { /* there may be no dimension */
        v_sums folded[BYTE_ROWS][LANES / FOLD];
        ptrdiff_t left = m->bytes.dim - first;
        ptrdiff_t end = first + (left < ATTN_CODE_DIMS ? left : ATTN_CODE_DIMS);
        for (int i = 0; i < LANES; i += FOLD) {
            sum_dimensions(m, codes, k + i, first, end, folded, rows);
        }
        UNROLLED for (int i = 0; i < rows; i++)
        {
            v_real score = v_float_sums(v_join(folded[i]));
            if (first > 0) {
                score = v_add(v_load(to + i * m->line), score);
            }
            if (end >= m->bytes.dim) {
                score = v_mul(score, v_set1(m->factor[r + i]));
                score = v_mul(score, v_load(m->scale + k));
            }
            v_store(to + i * m->line, score);
        }
        first = end;
    } while (first < m->bytes.dim);
}

static INLINE void
score_keys(const attn_byte_product *m, const int rows)
{
    for (ptrdiff_t k = 0; k < m->bytes.n; k += LANES) {
        for (ptrdiff_t i = k; i < k + LANES && i < m->bytes.n; i++) {
            prefetch_after(&m->bytes, i);
        }
        for (ptrdiff_t r = 0; r < m->n_rows; r += rows) {
            score_some_keys(m, k, r, rows);
        }
    }
}

#endif
