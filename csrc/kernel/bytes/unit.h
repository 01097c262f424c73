/* Tile form on a matrix unit. Keys are multiplied as they lie, by digits in the order that
 * kernel/bytes/digits.h describes: a tile has rows of keys and lanes of digits. Of values, four
 * are zipped, and lanes of digits become rows. Sums go through memory. Products of several blocks
 * keep the unit awake: without work for some 700 cycles, it falls asleep, and takes as long to wake
 * up. Values are prefetched beside products with keys; keys in order, by the CPU on its own. */
#ifndef ATTN_KERNEL_BYTES_UNIT_H
#define ATTN_KERNEL_BYTES_UNIT_H

#include "core/limits.h"
#include "core/tasks.h"
#include "kernel/bytes/prefetch.h"
#include "kernel/bytes/results.h"

enum {
    SLICE = 64,     /* keys */
    QUAD = 4,       /* values that are zipped */
    LEAST_STEP = 16 /* bytes of a row; with fewer, vectors are faster */
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

/* The sums of up to SLICE keys, a multiple of UNIT_ROWS, with a vector of lanes. */
static NOINLINE void
multiply_keys(const attn_byte_product *m, ptrdiff_t first, ptrdiff_t n, ptrdiff_t lane,
              ptrdiff_t step, int32_t *sums)
{
    const int8_t *keys = m->bytes.at + first * m->bytes.row;
    const char *digits = m->codes + 4 * lane;
    ptrdiff_t dim = m->bytes.dim, row = m->bytes.row, line = 4 * m->line;

    for (ptrdiff_t d = 0; d < dim; d += 2 * step) {
        bool two = d + step < dim;
        if (first == 0 || dim > 2 * step) {
            u_load_digits(digits + d / 2 * line, 2 * line, line, step / 2 * line, two);
        }
        for (ptrdiff_t k = 0; k < n; k += UNIT_ROWS) {
            if (d == 0) {
                u_clear();
            } else {
                u_load(sums + k * UNIT_SUMS_ROW);
            }
            u_add_rows(keys + k * row + d, row, step, two);
            u_store(sums + k * UNIT_SUMS_ROW);
        }
    }
    u_publish(sums);
}

/* The last slice has some keys of the one before once more. */
static INLINE void
score_keys(const attn_byte_product *product, ptrdiff_t step)
{
    _Alignas(UNIT_BYTES) int32_t sums[SLICE * UNIT_SUMS_ROW];
    const attn_byte_product m = *product; /* which no store may change */
    ptrdiff_t n = m.bytes.n, slice = n < SLICE ? n / UNIT_ROWS * UNIT_ROWS : SLICE;

    for (ptrdiff_t lane = 0; lane < m.n_lanes; lane += LANES) {
        for (ptrdiff_t i = 0; i < n; i += slice) {
            ptrdiff_t first = i < n - slice ? i : n - slice;
            multiply_keys(&m, first, slice, lane, step, sums);
            for (ptrdiff_t k = 0; k < slice; k += BYTE_PANEL) {
                const int32_t *at = sums + k * UNIT_SUMS_ROW;
                for (int j = 0; lane == 0 && j < BYTE_PANEL; j++) {
                    prefetch_after(&m.bytes, first + k + j);
                }
                v_sums sum[BYTE_PANEL] = {v_load_digit_sums(at),
                                          v_load_digit_sums(at + UNIT_SUMS_ROW)};
                store_scores(&m, first + k, 0, true, lane, sum, 1);
            }
        }
    }
}

static bool
score_on_unit(const attn_byte_product *m, int n)
{
    ptrdiff_t dim = m->bytes.dim;
    int step = unit_step(dim);

    if (m->bytes.are_shorts || dim == 0 || dim > ATTN_CODE_DIMS || step == 0) {
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (m[i].bytes.n < UNIT_ROWS) {
            return false;
        }
    }
    u_begin(step);
    for (int i = 0; i < n; i++) {
        score_keys(m + i, step);
    }
    u_end();
    return true;
}

/* Turns digits of n weights into rows, (steps, UNIT_DIGITS) tiles, which zeros fill up. */
static INLINE void
transpose_weights(const char *codes, ptrdiff_t line, ptrdiff_t n, char *to)
{
    for (ptrdiff_t k = 0; k < n; k += UNIT_BYTES) {
        for (int digit = 0; digit < UNIT_DIGITS; digit++, to += UNIT_TILE) {
            v_real quads[LANES];
            UNROLLED for (int i = 0; i < LANES; i++)
            {
                const char *at = codes + ((k + QUAD * i) / 2 + digit) * line;
                quads[i] = k + QUAD * i < n ? v_load((const float *)(const void *)at)
                                            : v_set1(0);
            }
            v_transpose(quads);
            UNROLLED for (int i = 0; i < LANES; i++)
            {
                v_store((float *)(void *)(to + i * UNIT_BYTES), quads[i]);
            }
        }
    }
}

/* Columns of values that are zipped into (steps, 4) tiles. */
typedef struct {
    const attn_byte_product *m; /* of the values */
    ptrdiff_t d;                /* the first column */
    char *to;
} columns;

/* Zips a quarter of the columns' values. */
static INLINE void
zip_quarter(const columns *c, ptrdiff_t quarter)
{
    const attn_byte_rows b = c->m->bytes; /* which no store may change */
    ptrdiff_t end = attn_divide_up(b.n, UNIT_BYTES) * UNIT_BYTES / 4;
    ptrdiff_t k = quarter * end, left = b.dim - c->d;
    char *to =
        c->to + k / UNIT_BYTES * 4 * UNIT_TILE + k % UNIT_BYTES * (UNIT_BYTES / QUAD);
    const int8_t *at = b.at + k * b.row + c->d, *last = b.at + (b.n - 1) * b.row + c->d;

    for (end += k; k < end; k += QUAD, at += QUAD * b.row, to += UNIT_BYTES) {
        const int8_t *rows[QUAD];
        UNROLLED for (int i = 0; i < QUAD; i++)
        {
            rows[i] = k + i < b.n ? at + i * b.row : last; /* times 0 */
        }
        v_store_zipped(to, rows, left);
    }
}

/* Stores the values of columns d + 16 q + i. */
static INLINE void
store_columns(const attn_byte_product *m, ptrdiff_t d, ptrdiff_t lane,
              const int32_t *sums)
{
    v_real unit = v_load(m->unit + lane), back = v_load(m->back + lane);
    const float *keep = m->keep == NULL ? NULL : m->keep + lane;
    v_real values[LANES];

    UNROLLED for (int i = 0; i < LANES; i++)
    {
        values[i] = v_float_sums(v_load_digit_sums(sums + i * UNIT_SUMS_ROW));
    }
    v_transpose(values);
    UNROLLED for (int i = 0; i < LANES; i++)
    {
        ptrdiff_t column = d + i / 4 * 16 + i % 4;
        if (column < m->bytes.dim) {
            store_value(m->sums + column * m->line + lane, keep, values[i], unit, back);
        }
    }
}

/* The sums of zipped columns with a vector of lanes, while the next ones, if any, are zipped. */
static INLINE void
sum_columns(const columns *c, ptrdiff_t lane, const columns *next)
{
    _Alignas(UNIT_BYTES) int32_t sums[UNIT_ROWS * UNIT_SUMS_ROW];
    const attn_byte_product m = *c->m; /* which no store may change */

    for (int i = 0; i < 4; i++) {
        u_clear();
        u_add_columns(c->to + i * UNIT_TILE, 4 * UNIT_TILE, m.bytes.n > UNIT_BYTES);
        u_store(sums);
        u_publish(sums);
        if (lane == 0 && next->m != NULL) {
            zip_quarter(next, i);
        }
        store_columns(&m, c->d + 4 * i, lane, sums);
    }
}

/* Sums of a block; `next` is the block behind it, or NULL. */
static INLINE void
sum_block(const attn_byte_product *m, const attn_byte_product *next, columns *c)
{
    _Alignas(
        UNIT_BYTES) char weights[ATTN_TASK_ROWS / LANES][2 * UNIT_DIGITS * UNIT_TILE];

    for (ptrdiff_t lane = 0; lane < m->n_lanes; lane += LANES) {
        transpose_weights(m->codes + 4 * lane, 4 * m->line, m->bytes.n,
                          weights[lane / LANES]);
    }
    u_publish(weights);
    for (ptrdiff_t d = 0; d < m->bytes.dim; d += UNIT_BYTES) {
        columns now = c[0];
        bool last = d + UNIT_BYTES >= m->bytes.dim;
        c[0] = (columns){last ? next : m, last ? 0 : d + UNIT_BYTES, c[1].to};
        c[1].to = now.to;
        u_publish(now.to);
        for (ptrdiff_t lane = 0; lane < m->n_lanes; lane += LANES) {
            if (d == 0 || m->n_lanes > LANES) {
                u_load_digits(weights[lane / LANES], UNIT_BYTES, UNIT_TILE,
                              UNIT_DIGITS * UNIT_TILE, m->bytes.n > UNIT_BYTES);
            }
            sum_columns(&now, lane, c);
        }
    }
}

static bool
sum_on_unit(const attn_byte_product *m, int n)
{
    _Alignas(UNIT_BYTES) char slabs[2][ATTN_BLOCK * UNIT_BYTES];
    columns c[2] = {{.m = m, .to = slabs[0]}, {.to = slabs[1]}};

    if (m->bytes.are_shorts || m->bytes.dim % UNIT_ROWS != 0 || m->bytes.dim == 0) {
        return false;
    }
    u_begin(UNIT_BYTES);
    for (int i = 0; i < 4; i++) {
        zip_quarter(c, i);
    }
    for (int i = 0; i < n; i++) {
        sum_block(m + i, i + 1 < n ? m + i + 1 : NULL, c);
    }
    u_end();
    return true;
}

extern const attn_byte_unit BYTE_UNIT;

const attn_byte_unit BYTE_UNIT = {score_on_unit, sum_on_unit};

#endif
