/* Tile form: rows of codes are lanes, which are multiplied in pairs. Some rows of bytes are made
 * shorts at a time, which stay in the first-level cache; with BYTE_DIGITS, no rows are bytes. */
#ifndef ATTN_KERNEL_BYTES_LANES_H
#define ATTN_KERNEL_BYTES_LANES_H

#include "kernel/bytes/results.h"
#include "kernel/bytes/row_values.h"

#ifndef BYTE_DIGITS
#define BYTE_DIGITS 0 /* are bytes multiplied in fours, by kernel/bytes/digits.h? */
#endif

enum {
    TILE = BYTE_VECTORS * LANES,      /* lanes that are multiplied at a time */
    PANEL_PAIRS = ATTN_CODE_DIMS / 2, /* of a key */
    SLAB_ZIPS = BYTE_COLUMNS / NARROW /* of two values */
};

/* sum[i][v] = the sum over the steps of a[i * a_row + t * a_step] times vector v of line t of b.
 * All strides are in pairs. */
static INLINE void
multiply_pairs(v_sums *sum, const char *a, ptrdiff_t a_row, ptrdiff_t a_step,
               const char *b, ptrdiff_t b_line, ptrdiff_t n_steps, const int rows,
               const int n_vec)
{
    UNROLLED for (int i = 0; i < rows * n_vec; i++)
    {
        sum[i] = v_zero_sums();
    }
    for (ptrdiff_t t = 0; t < n_steps; t++, a += 4 * a_step, b += 4 * b_line) {
        v_shorts x[BYTE_VECTORS];
        UNROLLED for (int v = 0; v < n_vec; v++)
        {
            x[v] = v_load_shorts(b + 4 * v * LANES);
        }
        UNROLLED for (int i = 0; i < rows; i++)
        {
            v_shorts y = v_set1_shorts(a + 4 * i * a_row);
            UNROLLED for (int v = 0; v < n_vec; v++)
            {
                sum[i * n_vec + v] = v_add_pairs(sum[i * n_vec + v], y, x[v]);
            }
        }
    }
}

/* NARROW columns of bytes or shorts from d on, of which `left` are there; rows of shorts are
 * longer. */
static INLINE v_shorts
load_columns(const attn_byte_rows *b, ptrdiff_t row, ptrdiff_t d, ptrdiff_t left)
{
    const int8_t *at = b->at + row * b->row;

    if (BYTE_DIGITS || b->are_shorts) {
        return v_load_shorts(at + 2 * d);
    }
    return v_widen(left < NARROW ? v_load_some(at + d, left) : v_load_narrow(at + d));
}

/* Widens a piece of n dimensions of BYTE_PANEL keys from k on; fewer are left of the last. */
static INLINE void
widen_panel(const attn_byte_rows *b, ptrdiff_t k, ptrdiff_t first, ptrdiff_t n,
            char *slab)
{
    for (int i = 0; i < BYTE_PANEL; i++, slab += 4 * PANEL_PAIRS) {
        ptrdiff_t key = k + i < b->n ? k + i : b->n - 1, d = 0;
        for (; d < n; d += NARROW) {
            v_store_shorts(slab + 2 * d, load_columns(b, key, first + d, n - d));
        }
    }
}

/* Scores of a panel of keys, of a piece of n dimensions. */
static INLINE void
score_panel(const attn_byte_product *m, ptrdiff_t k, ptrdiff_t first, ptrdiff_t n,
            const char *keys, ptrdiff_t key_row, ptrdiff_t lane, const int n_vec)
{
    v_sums sum[BYTE_PANEL * BYTE_VECTORS];
    const char *codes = m->codes + 4 * (first / 2 * m->line + lane);

    multiply_pairs(sum, keys, key_row, 1, codes, m->line, (n + 1) / 2, BYTE_PANEL,
                   n_vec);
    store_scores(m, k, first, first + n >= m->bytes.dim, lane, sum, n_vec);
}

static void
score_pairs(const attn_byte_product *m)
{
    _Alignas(CACHE_LINE) char slab[BYTE_PANEL * 4 * PANEL_PAIRS];

    for (ptrdiff_t k = 0; k < m->bytes.n; k += BYTE_PANEL) {
        ptrdiff_t first = 0;
        do { /* there may be no dimension */
            ptrdiff_t left = m->bytes.dim - first;
            ptrdiff_t n = left < ATTN_CODE_DIMS ? left : ATTN_CODE_DIMS;
            const char *keys = slab;
            ptrdiff_t row = PANEL_PAIRS;
            if (m->bytes.are_shorts && k + BYTE_PANEL <= m->bytes.n) {
                keys = (const char *)m->bytes.at + k * m->bytes.row + 2 * first;
                row = m->bytes.row / 4;
            } else {
                widen_panel(&m->bytes, k, first, n, slab);
            }
            int lane = 0;
            for (; lane + TILE <= m->n_lanes; lane += TILE) {
                score_panel(m, k, first, n, keys, row, lane, BYTE_VECTORS);
            }
            for (; lane < m->n_lanes; lane += LANES) {
                score_panel(m, k, first, n, keys, row, lane, 1);
            }
            first += n;
        } while (first < m->bytes.dim);
        for (int i = 0; i < BYTE_PANEL && k + i < m->bytes.n; i++) {
            prefetch_after(&m->bytes, k + i);
        }
    }
}

/* Zips the columns from d on of all values, two by two, into lines of BYTE_COLUMNS pairs. */
static INLINE void
zip_columns(const attn_byte_rows *b, ptrdiff_t d, char *slab)
{
    for (ptrdiff_t k = 0; k < b->n; k += 2, slab += 4 * BYTE_COLUMNS) {
        ptrdiff_t next = k + 1 < b->n ? k + 1 : k; /* times 0 */
        const int8_t *low = b->at + k * b->row + d, *high = b->at + next * b->row + d;
        v_shorts x[2];
        for (int z = 0; z < SLAB_ZIPS && d + z * NARROW < b->dim; z++) {
            ptrdiff_t at = z * NARROW, left = b->dim - d - at;
            if (BYTE_DIGITS || b->are_shorts) {
                v_zip_shorts(x, load_columns(b, k, d + at, left),
                             load_columns(b, next, d + at, left));
            } else if (left >= NARROW) {
                v_zip(x, v_load_narrow(low + at), v_load_narrow(high + at));
            } else {
                v_zip(x, v_load_some(low + at, left), v_load_some(high + at, left));
            }
            v_store_shorts(slab + 4 * at, x[0]);
            v_store_shorts(slab + 4 * (at + LANES), x[1]);
        }
    }
}

/* The sums of `rows` columns from d on, which are in the slab. */
static INLINE void
sum_panel(const attn_byte_product *m, ptrdiff_t d, const char *slab, ptrdiff_t lane,
          const int rows, const int n_vec)
{
    v_sums sum[BYTE_PANEL * BYTE_VECTORS];

    multiply_pairs(sum, slab, 1, BYTE_COLUMNS, m->codes + 4 * lane, m->line,
                   (m->bytes.n + 1) / 2, rows, n_vec);
    store_values(m, d, lane, sum, rows, n_vec);
}

static NOINLINE void
sum_one_column(const attn_byte_product *m, ptrdiff_t d, const char *slab,
               ptrdiff_t lane)
{
    sum_panel(m, d, slab, lane, 1, 1);
}

/* Prefetches the share of a panel's columns from d on in the next rows. */
static INLINE void
prefetch_share(const attn_byte_rows *b, ptrdiff_t d)
{
    ptrdiff_t end = (d + BYTE_PANEL) * b->n / b->dim;

    for (ptrdiff_t k = d * b->n / b->dim; b->next != NULL && k < end; k++) {
        prefetch_after(b, k);
    }
}

/* All columns of the slab, which begins at column d. */
static INLINE void
sum_slab(const attn_byte_product *m, ptrdiff_t d, const char *slab, ptrdiff_t lane,
         const int n_vec)
{
    ptrdiff_t end = d + BYTE_COLUMNS < m->bytes.dim ? d + BYTE_COLUMNS : m->bytes.dim;

    for (; d + BYTE_PANEL <= end; d += BYTE_PANEL, slab += 4 * BYTE_PANEL) {
        sum_panel(m, d, slab, lane, BYTE_PANEL, n_vec);
        if (lane == 0) {
            prefetch_share(&m->bytes, d);
        }
    }
    for (; d < end; d++, slab += 4) {
        for (int v = 0; v < n_vec; v++) { /* rare */
            sum_one_column(m, d, slab, lane + v * LANES);
        }
    }
}

static void
sum_pairs(const attn_byte_product *m)
{
    _Alignas(CACHE_LINE) char slab[ATTN_BLOCK / 2 * 4 * BYTE_COLUMNS];

    for (ptrdiff_t d = 0; d < m->bytes.dim; d += BYTE_COLUMNS) {
        zip_columns(&m->bytes, d, slab);
        int lane = 0;
        for (; lane + TILE <= m->n_lanes; lane += TILE) {
            sum_slab(m, d, slab, lane, BYTE_VECTORS);
        }
        for (; lane < m->n_lanes; lane += LANES) {
            sum_slab(m, d, slab, lane, 1);
        }
    }
}

#endif
