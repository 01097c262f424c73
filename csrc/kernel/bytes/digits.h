/* Tile form where a CPU multiplies unsigned bytes by signed ones, four at a time. A code is
 * 256 * high + low, of two signed bytes, its digits, in lines of four dimensions or keys, high and
 * low by turns. Keys and values get 128 added, so that they are unsigned; what this adds to a
 * sum, 128 times that of its codes, is taken off in the end. */
#ifndef ATTN_KERNEL_BYTES_DIGITS_H
#define ATTN_KERNEL_BYTES_DIGITS_H

#include "kernel/bytes/lanes.h"

enum {
    QUAD = 4,
    QUARTER = 4 * QUAD, /* bytes of a vector */
    STRIDE =
        4 /* quads after which, while NARROW columns are multiplied, others are prepared */
};

/* Codes of a row, n of them, become digits in their place. */
static void
split_row(void *codes, ptrdiff_t n)
{
    for (ptrdiff_t k = 0; k < n; k += NARROW) {
        char *at = (char *)codes + 2 * k;
        v_store_shorts(at, v_split(v_load_shorts(at)));
    }
}

/* Digits take the place of lines that have been read, two lines for four. */
static INLINE void
round_quads(float *x, ptrdiff_t n, ptrdiff_t line, const rounding *r)
{
    for (ptrdiff_t k = 0; k < n; k += QUAD) {
        v_real codes[QUAD];
        UNROLLED for (int i = 0; i < QUAD; i++)
        {
            bool there = k + i < n;
            codes[i] = there ? scaled(v_load(x + (k + i) * line), r) : v_set1(0);
        }
        v_store_digits(x + k / 2 * line, x + (k / 2 + 1) * line, codes);
    }
}

/* Adds to the sums of each digit the products of a vector of lanes and quads of bytes of some rows,
 * which are a_row bytes apart, and QUAD of them a_rows. */
static INLINE void
add_digits(v_sums *high, v_sums *low, const char *a, ptrdiff_t a_row, ptrdiff_t a_rows,
           ptrdiff_t a_step, const char *b, ptrdiff_t b_line, ptrdiff_t n_steps,
           const int rows)
{
    for (ptrdiff_t t = 0; t < n_steps; t++, a += a_step, b += 8 * b_line) {
        v_shorts x = v_load_shorts(b), y = v_load_shorts(b + 4 * b_line);
        UNROLLED for (int i = 0; i < rows; i++)
        {
            const char *at = a + i / QUAD * a_rows + i % QUAD * a_row;
            v_shorts quad = v_add_128(v_set1_shorts(at));
            high[i] = v_add_quads(high[i], quad, x);
            low[i] = v_add_quads(low[i], quad, y);
        }
    }
}

static INLINE void
clear_sums(v_sums *high, v_sums *low, const int rows)
{
    UNROLLED for (int i = 0; i < rows; i++)
    {
        high[i] = low[i] = v_zero_sums();
    }
}

/* Sums of codes, from those of their digits, in the place of the low ones. */
static INLINE void
join_sums(const v_sums *high, v_sums *low, v_sums excess, const int rows)
{
    UNROLLED for (int i = 0; i < rows; i++)
    {
        low[i] = v_less_sums(v_join_digits(high[i], low[i]), excess);
    }
}

/* What 128 more adds to sums. */
static INLINE v_sums
excess_of(const char *codes, ptrdiff_t line, ptrdiff_t n_steps)
{
    static const char zeros[QUAD] = {0};
    v_sums high, low;

    clear_sums(&high, &low, 1);
    add_digits(&high, &low, zeros, 0, 0, 0, codes, line, n_steps, 1);
    return v_join_digits(high, low);
}

/* Copies n dimensions of BYTE_PANEL keys from k on, or of those that are left, and fills up the last
 * quarter with zeros. */
static INLINE void
copy_panel(const attn_byte_rows *b, ptrdiff_t k, ptrdiff_t first, ptrdiff_t n,
           char *slab)
{
    for (int i = 0; i < BYTE_PANEL; i++, slab += ATTN_CODE_DIMS) {
        ptrdiff_t key = k + i < b->n ? k + i : b->n - 1;
        memcpy(slab, b->at + key * b->row + first, (size_t)n);
        memset(slab + n, 0, QUARTER - 1);
    }
}

static void
score_digits(const attn_byte_product *product)
{
    _Alignas(CACHE_LINE) char slab[BYTE_PANEL * ATTN_CODE_DIMS + QUARTER];
    const attn_byte_product m = *product; /* which no store may change */
    ptrdiff_t first = 0, dim = m.bytes.dim;

    do { /* there may be no dimension */
        ptrdiff_t left = dim - first, n = left < ATTN_CODE_DIMS ? left : ATTN_CODE_DIMS;
        ptrdiff_t steps = (n + QUAD - 1) / QUAD;
        const char *codes = m.codes + 2 * first * m.line;
        v_sums excess[ATTN_TASK_ROWS / LANES];
        for (int lane = 0; lane < m.n_lanes; lane += LANES) {
            excess[lane / LANES] = excess_of(codes + 4 * lane, m.line, steps);
        }
        for (ptrdiff_t k = 0; k < m.bytes.n; k += BYTE_PANEL) {
            const char *keys = (const char *)m.bytes.at + k * m.bytes.row + first;
            ptrdiff_t row = m.bytes.row;
            if (n % QUAD != 0 || k + BYTE_PANEL > m.bytes.n) {
                copy_panel(&m.bytes, k, first, n, slab);
                keys = slab, row = ATTN_CODE_DIMS;
            }
            for (ptrdiff_t i = k; first == 0 && i < k + BYTE_PANEL && i < m.bytes.n;
                 i++) {
                prefetch_after(&m.bytes, i);
            }
            for (int lane = 0; lane < m.n_lanes; lane += LANES) {
                v_sums high[BYTE_PANEL], sum[BYTE_PANEL];
                clear_sums(high, sum, BYTE_PANEL);
                add_digits(high, sum, keys, row, QUAD * row, QUAD, codes + 4 * lane,
                           m.line, steps, BYTE_PANEL);
                join_sums(high, sum, excess[lane / LANES], BYTE_PANEL);
                store_scores(&m, k, first, first + n >= dim, lane, sum, 1);
            }
        }
        first += n;
    } while (first < dim);
}

/* Zips NARROW columns from d on, or those that are left, of four values from k on, in the order
 * that place_of has. */
static INLINE void
zip_quads(const attn_byte_rows *b, ptrdiff_t d, ptrdiff_t k, char *slab)
{
    ptrdiff_t left = b->dim - d;
    v_narrow x[QUAD];

    UNROLLED for (int i = 0; i < QUAD; i++)
    {
        ptrdiff_t key = k + i < b->n ? k + i : k; /* times 0 */
        const int8_t *at = b->at + key * b->row + d;
        x[i] = left < NARROW ? v_load_some(at, left) : v_load_narrow(at);
    }
    v_store_quads(slab + k * NARROW, x);
}

/* Where a column's quads are. */
static INLINE ptrdiff_t
place_of(ptrdiff_t column)
{
    return column % 16 / QUAD * NARROW + column / 16 * 16 + column % QUAD * QUAD;
}

/* What is done beside products: columns from d on are zipped, of values from `zipped` on, and rows
 * that are read later are prefetched, from `row` on, `rows` at a time. */
typedef struct {
    ptrdiff_t d, zipped;
    char *slab;
    ptrdiff_t row, rows;
} errand;

/* Some of it, between a few products, which leave time for it. */
static INLINE void
run_errand(errand *e, const attn_byte_rows *values)
{
    if (e->zipped < values->n) {
        zip_quads(values, e->d, e->zipped, e->slab);
        e->zipped += QUAD;
    }
    for (ptrdiff_t end = e->row + e->rows; e->row < end && e->row < values->n;
         e->row++) {
        prefetch_after(values, e->row);
    }
}

/* Sums of BYTE_PANEL columns from d on, or those that are left. */
static INLINE void
sum_eight_columns(const attn_byte_product *m, ptrdiff_t d, const char *slab,
                  ptrdiff_t lane, v_sums excess, errand *e)
{
    const char *codes = m->codes + 4 * lane;
    ptrdiff_t left = (m->bytes.n + QUAD - 1) / QUAD;
    v_sums high[BYTE_PANEL], sum[BYTE_PANEL];

    clear_sums(high, sum, BYTE_PANEL);
    for (; left > 0; left -= STRIDE) {
        run_errand(e, &m->bytes);
        add_digits(high, sum, slab, QUAD, NARROW, QUAD * NARROW, codes, m->line,
                   left < STRIDE ? left : STRIDE, BYTE_PANEL);
        slab += STRIDE * QUAD * NARROW;
        codes += STRIDE * 8 * m->line;
    }
    join_sums(high, sum, excess, BYTE_PANEL);
    store_values(m, d, lane, sum, BYTE_PANEL, 1);
}

static void
sum_digits(const attn_byte_product *product)
{
    _Alignas(CACHE_LINE) char slabs[2][ATTN_BLOCK * NARROW];
    const attn_byte_product m = *product; /* which no store may change */
    ptrdiff_t steps = (m.bytes.n + QUAD - 1) / QUAD, dim = m.bytes.dim;
    ptrdiff_t pauses = (steps + STRIDE - 1) / STRIDE * (dim / BYTE_PANEL) + 1;
    errand e = {.rows = m.bytes.n / pauses + 1};
    v_sums excess[ATTN_TASK_ROWS / LANES];

    for (int lane = 0; lane < m.n_lanes; lane += LANES) {
        excess[lane / LANES] = excess_of(m.codes + 4 * lane, m.line, steps);
    }
    for (ptrdiff_t k = 0; k < m.bytes.n; k += QUAD) {
        zip_quads(&m.bytes, 0, k, slabs[0]);
    }
    for (ptrdiff_t first = 0; first < dim; first += NARROW) {
        const char *slab = slabs[first / NARROW % 2];
        ptrdiff_t next = first + NARROW, end = dim < next ? dim : next;
        e.d = next;
        e.slab = slabs[next / NARROW % 2];
        e.zipped = next < dim ? 0 : m.bytes.n;
        for (int lane = 0; lane < m.n_lanes; lane += LANES) {
            for (ptrdiff_t d = first; d < end; d += BYTE_PANEL) {
                sum_eight_columns(&m, d, slab + place_of(d - first), lane,
                                  excess[lane / LANES], &e);
            }
        }
    }
}

#endif
