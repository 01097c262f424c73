/* Row form: the products of few rows of codes with bytes. Keys and values are read in the order
 * of memory. */
#ifndef ATTN_KERNEL_BYTES_ROWS_H
#define ATTN_KERNEL_BYTES_ROWS_H

#include "kernel/bytes/prefetch.h"
#include "kernel/bytes/round.h"

enum {
    NARROW = 2 * LANES, /* bytes that are widened at a time */
    MOST_SUMS = BYTE_ROWS * FOLD > 8 ? BYTE_ROWS * FOLD : 8 /* vectors, in registers */
};

/* Adds the products of NARROW dimensions of FOLD keys and some rows; `some` has fewer left. */
static INLINE void
add_dimensions(v_sums *sums, const int8_t *const *at, ptrdiff_t d, ptrdiff_t left,
               const char *codes, ptrdiff_t code_row, const int rows, const bool some)
{
    v_shorts key[FOLD];

    UNROLLED for (int i = 0; i < FOLD; i++)
    {
        key[i] =
            v_widen(some ? v_load_some(at[i] + d, left) : v_load_narrow(at[i] + d));
    }
    UNROLLED for (int r = 0; r < rows; r++)
    {
        v_shorts query = v_load_shorts(codes + 2 * (r * code_row + d));
        UNROLLED for (int i = 0; i < FOLD; i++)
        {
            sums[r * FOLD + i] = v_add_pairs(sums[r * FOLD + i], query, key[i]);
        }
    }
}

/* folded[row] = the sums over dimensions first .. end - 1 of FOLD keys from k on. Those behind
 * the last key count as the last one. */
static INLINE void
sum_dimensions(const attn_byte_product *m, const char *codes, ptrdiff_t k,
               ptrdiff_t first, ptrdiff_t end, v_sums folded[][LANES / FOLD],
               const int rows, bool prefetches)
{
    const int8_t *at[FOLD];
    v_sums sum[MOST_SUMS];
    ptrdiff_t d = first;

    UNROLLED for (int i = 0; i < FOLD; i++)
    {
        ptrdiff_t key = k + i < m->bytes.n ? k + i : m->bytes.n - 1;
        at[i] = m->bytes.at + key * m->bytes.row;
        if (prefetches) {
            prefetch_after(&m->bytes, key);
        }
    }
    UNROLLED for (int i = 0; i < rows * FOLD; i++)
    {
        sum[i] = v_zero_sums();
    }
    for (; d + NARROW <= end; d += NARROW) {
        add_dimensions(sum, at, d, NARROW, codes, m->code_row, rows, false);
    }
    if (d < end) {
        add_dimensions(sum, at, d, end - d, codes, m->code_row, rows, true);
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
    v_real total[BYTE_ROWS] = {v_set1(0)};
    ptrdiff_t first = 0;

    do { /* there may be no dimension */
        v_sums folded[BYTE_ROWS][LANES / FOLD];
        ptrdiff_t left = m->bytes.dim - first;
        ptrdiff_t end = first + (left < ATTN_CODE_DIMS ? left : ATTN_CODE_DIMS);
        for (int i = 0; i < LANES; i += FOLD) {
            sum_dimensions(m, codes, k + i, first, end, folded, rows,
                           r == 0 && first == 0);
        }
        UNROLLED for (int i = 0; i < rows; i++)
        {
            v_real sum = v_float_sums(v_join(folded[i]));
            total[i] = first == 0 ? sum : v_add(total[i], sum);
        }
        first = end;
    } while (first < m->bytes.dim);
    UNROLLED for (int i = 0; i < rows; i++)
    {
        v_real score = v_mul(total[i], v_set1(m->factor[r + i]));
        v_store(m->sums + (r + i) * m->line + k, v_mul(score, v_load(m->scale + k)));
    }
}

static INLINE void
score_keys(const attn_byte_product *m, const int rows)
{
    for (ptrdiff_t k = 0; k < m->bytes.n; k += LANES) {
        for (ptrdiff_t r = 0; r < m->n_rows; r += rows) {
            score_some_keys(m, k, r, rows);
        }
    }
}

/* Adds to the sums of `zips` times NARROW columns from d on, or of fewer, some of one zip, what
 * values first .. end - 1 make. They are integers until the last one is added. */
static INLINE void
sum_columns(const attn_byte_product *m, ptrdiff_t first, ptrdiff_t r, ptrdiff_t d,
            const int rows, const int zips, const bool some)
{
    const char *codes = m->codes + 2 * r * m->code_row;
    float *sums = m->sums + r * m->line + d;
    const attn_byte_rows *b = &m->bytes;
    const int n_vec = 2 * zips;
    ptrdiff_t left = b->dim - d < NARROW ? b->dim - d : NARROW;
    bool last = first + ATTN_CODE_UNIT >= b->n;
    ptrdiff_t end = last ? b->n : first + ATTN_CODE_UNIT;
    v_sums sum[MOST_SUMS];

    UNROLLED for (int i = 0; i < rows * n_vec; i++)
    {
        ptrdiff_t at = i % n_vec * LANES;
        sum[i] = first > 0 && (!some || d + at < b->dim)
                     ? v_load_sums(sums + i / n_vec * m->line + at)
                     : v_zero_sums();
    }
    for (ptrdiff_t k = first; k < end; k += 2) {
        const int8_t *low = b->at + k * b->row + d;
        const int8_t *high = k + 1 < b->n ? low + b->row : low; /* times 0 */
        v_shorts x[MOST_SUMS];
        if (d == 0 && r == 0) {
            prefetch_after(b, k);
            prefetch_after(b, k + 1);
        }
        UNROLLED for (int z = 0; z < zips; z++)
        {
            ptrdiff_t at = z * NARROW;
            if (some) {
                v_zip(x, v_load_some(low, left), v_load_some(high, left));
            } else {
                v_zip(x + 2 * z, v_load_narrow(low + at), v_load_narrow(high + at));
            }
        }
        UNROLLED for (int i = 0; i < rows; i++)
        {
            v_shorts weights = v_set1_shorts(codes + 2 * (i * m->code_row + k));
            UNROLLED for (int v = 0; v < n_vec; v++)
            {
                v_sums *to = sum + i * n_vec + v;
                *to = v_add_pairs(*to, weights, x[v]);
            }
        }
    }
    UNROLLED for (int i = 0; i < rows * n_vec; i++)
    {
        ptrdiff_t at = i % n_vec * LANES, row = i / n_vec;
        float *to = sums + row * m->line + at;
        if (some && d + at >= b->dim) {
            continue;
        }
        if (last) {
            v_real product = v_mul(v_float_sums(sum[i]), v_set1(m->unit[r + row]));
            v_store(to, v_mul(product, v_set1(m->back[r + row])));
        } else {
            v_store_sums(to, sum[i]);
        }
    }
}

/* Adds weights first .. end - 1 of rows from r on, before r_end, to their totals. */
static INLINE void
add_weights(const attn_byte_product *m, ptrdiff_t r, ptrdiff_t r_end, ptrdiff_t first,
            ptrdiff_t end)
{
    for (; r < r_end; r++) {
        float total = m->totals[r];
        for (ptrdiff_t k = first; k < end; k++) {
            ONE_BY_ONE;
            total += m->weights[r * ATTN_BLOCK + k];
        }
        m->totals[r] = total;
    }
}

static INLINE void
sum_values(const attn_byte_product *m, ptrdiff_t first, const int rows)
{
    const int fit = MOST_SUMS / (2 * rows), zips = fit < 4 ? fit : 4;

    for (ptrdiff_t r = 0; r < m->n_rows; r += rows) {
        ptrdiff_t d = 0;
        for (; d + zips * NARROW <= m->bytes.dim; d += zips * NARROW) {
            sum_columns(m, first, r, d, rows, zips, false);
        }
        for (; d < m->bytes.dim; d += NARROW) {
            sum_columns(m, first, r, d, rows, 1, true);
        }
    }
}

#endif
