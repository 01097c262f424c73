/* Tile form on a matrix unit. A tile of bytes has rows of keys as they lie, or columns of values; a
 * tile of digits has lanes in the order that kernel/bytes/digits.h describes. Sums go through
 * memory. All is done a slice at a time, which keeps the unit awake: without work for some 700
 * cycles, it falls asleep, and takes as long to wake up. */
#ifndef ATTN_KERNEL_BYTES_UNIT_H
#define ATTN_KERNEL_BYTES_UNIT_H

#include "core/limits.h"
#include "core/tasks.h"
#include "kernel/bytes/prefetch.h"
#include "kernel/bytes/results.h"

enum {
    SLICE = 2 * UNIT_ROWS,  /* keys, or columns of values */
    TURNED = 2 * UNIT_ROWS, /* values of which columns are made at a time */
    LEAST_STEP = 16         /* bytes of a row; with fewer, vectors are faster */
};

/* The largest step that divides n; or 0, if it is too small. */
static int
unit_step(ptrdiff_t n)
{
    int step = UNIT_BYTES;

    while (step >= LEAST_STEP && n % step != 0) {
        step -= 4;
    }
    return step < LEAST_STEP ? 0 : step;
}

/* The products of UNIT_ROWS rows with a vector of lanes. */
static INLINE void
multiply_tiles(const int8_t *rows, ptrdiff_t row, ptrdiff_t n, const char *digits,
               ptrdiff_t line, ptrdiff_t step, const bool other)
{
    u_clear(other);
    for (ptrdiff_t i = 0; i < n; i += step, digits += step / 2 * line) {
        u_multiply(rows + i, row, digits, line, other);
    }
}

/* The sums of a slice's rows of n bytes, or of the first UNIT_ROWS. */
static NOINLINE void
multiply_slice(const int8_t *rows, ptrdiff_t row, bool all, ptrdiff_t n,
               const char *digits, ptrdiff_t line, ptrdiff_t step, int32_t *sums)
{
    multiply_tiles(rows, row, n, digits, line, step, false);
    if (all) {
        multiply_tiles(rows + UNIT_ROWS * row, row, n, digits, line, step, true);
        u_store(sums + UNIT_ROWS * UNIT_SUMS_ROW, true);
    }
    u_store(sums, false);
    u_publish(sums);
}

static INLINE void
load_panel(const int32_t *sums, v_sums sum[BYTE_PANEL])
{
    UNROLLED for (int i = 0; i < BYTE_PANEL; i++)
    {
        sum[i] = v_load_digit_sums(sums + i * UNIT_SUMS_ROW);
    }
}

/* Prefetches so many more rows. */
static NOINLINE void
prefetch_more(const attn_byte_rows *b, ptrdiff_t *at, ptrdiff_t rows)
{
    for (; rows > 0 && *at < b->n; rows--, ++*at) {
        prefetch_after(b, *at);
    }
}

/* The last slice has some keys of the one before once more. */
static bool
score_on_unit(const attn_byte_product *product)
{
    _Alignas(LINE) int32_t sums[SLICE * UNIT_SUMS_ROW];
    const attn_byte_product m = *product; /* which no store may change */
    ptrdiff_t n = m.bytes.n, dim = m.bytes.dim, ahead = 0;
    int step = unit_step(dim);

    if (m.bytes.are_shorts || n < SLICE || dim == 0 || dim > ATTN_CODE_DIMS ||
        step == 0) {
        return false;
    }
    u_begin(step);
    for (ptrdiff_t i = 0; i < n; i += SLICE) {
        ptrdiff_t first = i < n - SLICE ? i : n - SLICE;
        for (ptrdiff_t lane = 0; lane < m.n_lanes; lane += LANES) {
            multiply_slice(m.bytes.at + first * m.bytes.row, m.bytes.row, true, dim,
                           m.codes + 4 * lane, 4 * m.line, step, sums);
            for (ptrdiff_t k = 0; k < SLICE; k += BYTE_PANEL) {
                v_sums sum[BYTE_PANEL];
                prefetch_more(&m.bytes, &ahead, lane == 0 ? BYTE_PANEL : 0);
                load_panel(sums + k * UNIT_SUMS_ROW, sum);
                store_scores(&m, first + k, 0, true, lane, sum, 1);
            }
        }
    }
    u_end();
    return true;
}

/* Makes bytes of UNIT_ROWS columns, from `at` on, of n values at `rows`; zeros fill up the last
 * step. */
static INLINE void
turn_values(const int8_t *at, const ptrdiff_t *rows, ptrdiff_t n, int8_t *to)
{
    for (ptrdiff_t k = 0; k < n || k % UNIT_BYTES != 0; k += TURNED, rows += TURNED) {
        v_narrow x[UNIT_ROWS];
        UNROLLED for (int i = 0; i < UNIT_ROWS; i++)
        {
            x[i] = v_load_halves(at + rows[i], at + rows[i + UNIT_ROWS]);
        }
        v_turn_bytes(x);
        UNROLLED for (int i = 0; i < UNIT_ROWS; i++)
        {
            v_store_some(to + i * ATTN_BLOCK + k, x[i], n - k);
        }
    }
}

static bool
sum_on_unit(const attn_byte_product *product)
{
    _Alignas(LINE) int8_t slab[SLICE * ATTN_BLOCK]; /* (columns, values) */
    _Alignas(LINE) int32_t sums[SLICE * UNIT_SUMS_ROW];
    const attn_byte_product m = *product; /* which no store may change */
    ptrdiff_t dim = m.bytes.dim, n = m.bytes.n, ahead = 0, rows[ATTN_BLOCK];

    if (m.bytes.are_shorts || dim % UNIT_ROWS != 0) {
        return false;
    }
    for (ptrdiff_t k = 0; k < ATTN_BLOCK; k++) {
        rows[k] = (k < n ? k : n - 1) * m.bytes.row;
    }
    u_begin(UNIT_BYTES);
    for (ptrdiff_t d = 0; d < dim; d += SLICE) {
        ptrdiff_t columns = dim - d < SLICE ? dim - d : SLICE;
        for (ptrdiff_t i = 0; i < columns; i += UNIT_ROWS) {
            turn_values(m.bytes.at + d + i, rows, n, slab + i * ATTN_BLOCK);
            prefetch_more(&m.bytes, &ahead, attn_divide_up(n * UNIT_ROWS, 2 * dim));
        }
        u_publish(slab);
        for (ptrdiff_t lane = 0; lane < m.n_lanes; lane += LANES) {
            multiply_slice(slab, ATTN_BLOCK, columns == SLICE, n, m.codes + 4 * lane,
                           4 * m.line, UNIT_BYTES, sums);
            for (ptrdiff_t i = 0; i < columns; i += BYTE_PANEL) {
                v_sums sum[BYTE_PANEL];
                prefetch_more(&m.bytes, &ahead,
                              attn_divide_up(n * BYTE_PANEL, 2 * dim));
                load_panel(sums + i * UNIT_SUMS_ROW, sum);
                store_values(&m, d + i, lane, sum, BYTE_PANEL, 1);
            }
        }
    }
    u_end();
    return true;
}

extern const attn_byte_unit BYTE_UNIT;

const attn_byte_unit BYTE_UNIT = {score_on_unit, sum_on_unit};

#endif
