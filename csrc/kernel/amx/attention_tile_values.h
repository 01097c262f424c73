/* Tile form: weighted sums of values, O[d][lane], on a matrix unit. Values are transposed for
 * it, into tiles whose rows are columns of values. */
#ifndef ATTN_KERNEL_AMX_ATTENTION_TILE_VALUES_H
#define ATTN_KERNEL_AMX_ATTENTION_TILE_VALUES_H

#include "kernel/amx/product.h"
#include "kernel/attention/tile_form/scores.h"
#include "kernel/attention/tile_form/scores.h"

/* Columns of values from d on, in the slab or the panel: for UNIT_ROWS columns the tiles of UNIT_TERMS keys
 * each, one behind the other, [column][pair of keys] and 0 where there is none. */
typedef struct {
    operand *at;
    ptrdiff_t first; /* key */
    ptrdiff_t d;
    ptrdiff_t n_columns;
    ptrdiff_t n_steps; /* of UNIT_TERMS keys */
    bool finite;
} value_tiles;

/* The tile of up to UNIT_TERMS values, n_columns <= UNIT_ROWS of them from `column` on. */
static void
stage_value_tile(const key_run *values, ptrdiff_t column, ptrdiff_t n_columns,
                 operand *to)
{
    const attn_array *value = values->array;
    const char *from = values->at + column * value->column_stride;
    ptrdiff_t n = values->n;
    v_operand a[LANES];

    for (int i = 0; i < LANES; i++) {
        const char *at = from + TERMS * i * value->row_stride;
        operand pairs[LANES] = {0};
        if (TERMS * i < n) {
            stage_rows(pairs, at, TERMS * i + 1 < n ? at + value->row_stride : NULL,
                       value->column_stride, n_columns, value->dtype);
        }
        a[i] = v_load_operands(pairs);
    }
    v_transpose_operands(a);
    UNROLLED for (int i = 0; i < LANES; i++)
    {
        v_store_pairs(to + i * UNIT_OPERANDS, a[i]);
    }
}

/* Two tiles, `step` operands apart, of UNIT_TERMS keys with twice UNIT_ROWS adjacent columns. */
static void
stage_two_tiles(const char *from, ptrdiff_t row, operand *to, ptrdiff_t step)
{
    v_operand a[LANES];

    for (int high = 0; high < 2; high++) {
        UNROLLED for (int i = 0; i < LANES; i++)
        {
            const char *at = from + TERMS * i * row;
            a[i] = u_zip((const uint16_t *)(const void *)at,
                         (const uint16_t *)(const void *)(at + row), high);
        }
        v_transpose_operands(a);
        UNROLLED for (int i = 0; i < LANES; i++)
        {
            int column = u_zip_element(i) + 4 * high;
            v_store_pairs(to + column / UNIT_ROWS * step +
                              column % UNIT_ROWS * UNIT_OPERANDS,
                          a[i]);
        }
    }
}

/* Makes tiles of up to UNIT_TERMS values, from `to` on. */
static void
stage_some_tiles(const value_tiles *tiles, const key_run *values, operand *to)
{
    const attn_array *value = values->array;
    ptrdiff_t step = tiles->n_steps * UNIT_TILE, c = 0;
    bool whole =
        value->column_stride == (ptrdiff_t)sizeof(uint16_t) && values->n == UNIT_TERMS;

    for (; c + UNIT_SQUARE <= tiles->n_columns && whole; c += UNIT_SQUARE) {
        stage_two_tiles(values->at + (tiles->d + c) * value->column_stride,
                        value->row_stride, to + c / UNIT_ROWS * step, step);
    }
    for (; c < tiles->n_columns; c += UNIT_ROWS) {
        stage_value_tile(values, tiles->d + c, least(tiles->n_columns - c, UNIT_ROWS),
                         to + c / UNIT_ROWS * step);
    }
}

/* Makes tiles of the run's values; those that come next are prefetched. */
static void
stage_value_tiles(const value_tiles *tiles, key_run values)
{
    for (operand *to = tiles->at; values.n > 0; to += UNIT_TILE) {
        key_run next = rest_of(values, least(values.n, UNIT_TERMS));
        prefetch ahead =
            prefetch_of(next.array, next.at + tiles->d * next.array->column_stride,
                        tiles->n_columns, least(next.n, UNIT_TERMS));
        prefetch_near(&ahead);
        values.n -= next.n;
        stage_some_tiles(tiles, &values, to);
        values = next;
    }
}

static bool
are_tiles_finite(const value_tiles *values)
{
    ptrdiff_t n_tiles =
        (values->n_columns + UNIT_ROWS - 1) / UNIT_ROWS * values->n_steps;

    return all_finite((matrix){values->at, UNIT_OPERANDS}, UNIT_OPERANDS, 0,
                      n_tiles * UNIT_ROWS);
}

/* Adds n_rows rows of sums to a tile's output, for the lanes whose bit is set: output * rescale
 * + sums, where there is any. */
static void
add_unit_sums(work *w, int tile, ptrdiff_t d, ptrdiff_t n_rows, const real *sums,
              uint64_t lanes)
{
    for (int v = 0; v < tile_vectors(&w->rows, tile); v++) {
        v_real keep = v_load(w->rescale + (ptrdiff_t)tile * WIDTH + v * LANES);
        v_mask wanted = v_mask_of(lanes >> (v * LANES));
        for (ptrdiff_t i = 0; i < n_rows; i++) {
            real *to = w->chunk.output[tile] + (d + i) * WIDTH + v * LANES;
            v_real sum = v_load(sums + i * WIDTH + v * LANES);
            v_real before = v_load(to);
            if (!w->chunk.empty[tile]) {
                sum = v_fma(before, keep, sum);
            }
            v_store(to, v_select(wanted, sum, before));
        }
    }
}

/* Of n tiles of values, UNIT_TERMS keys from `key` of the block on in each: 0 where a row may
 * not see them. */
static void
keep_seen_values(const work *w, ptrdiff_t row, ptrdiff_t key, const operand *from,
                 ptrdiff_t n, operand *to)
{
    for (ptrdiff_t i = 0; i < n * UNIT_TILE; i++) {
        ptrdiff_t k = key + i / UNIT_TILE * UNIT_TERMS + i % UNIT_OPERANDS * TERMS;
        ONE_BY_ONE;
        to[i] = keep_terms(from[i], w->rows.see[row][k / 64] >> (k % 64));
    }
}

/* Adds the products of a tile's weights and values to the chunk's output. Where a value that
 * some row may not see is not finite, row by row. */
static void
add_values(work *w, const block *b, int tile, const span *s, const value_tiles *values,
           const prefetch next[2])
{
    ptrdiff_t offset = (s->first - values->first) / UNIT_TERMS;
    real sums[UNIT_SQUARE * WIDTH];
    operand seen[2 * ATTN_BLOCK / UNIT_TERMS * UNIT_TILE];
    unit_product m = {.c = sums,
                      .c_row = WIDTH,
                      .a_row = UNIT_OPERANDS,
                      .a_tile = values->n_steps * UNIT_TILE,
                      .a_step = UNIT_TILE,
                      .b = (const operand *)(const void *)scores_of(w, tile),
                      .b_row = WIDTH,
                      .n_vec = tile_vectors(&w->rows, tile),
                      .n_steps = (s->n + UNIT_TERMS - 1) / UNIT_TERMS,
                      .next = {next[0], next[1]}};

    for (ptrdiff_t c = 0; c < values->n_columns; c += UNIT_SQUARE) {
        const operand *from =
            values->at + (c / UNIT_ROWS * values->n_steps + offset) * UNIT_TILE;
        ptrdiff_t d = values->d + c;
        m.n_rows = least(values->n_columns - c, UNIT_SQUARE);
        m.a = from;
        if (values->finite || !s->masked) {
            multiply_on_unit(&m);
            add_unit_sums(w, tile, d, m.n_rows, sums, ~UINT64_C(0));
            m.next[0].n_rows = m.next[1].n_rows = 0;
            continue;
        }
        m.a = seen;
        m.a_tile = m.n_steps * UNIT_TILE;
        for (ptrdiff_t r = 0; r < tile_rows(&w->rows, tile); r++) {
            for (ptrdiff_t j = 0; j < m.n_rows; j += UNIT_ROWS) {
                keep_seen_values(w, (ptrdiff_t)tile * WIDTH + r, s->first - b->first,
                                 from + j / UNIT_ROWS * values->n_steps * UNIT_TILE,
                                 m.n_steps, seen + j / UNIT_ROWS * m.a_tile);
            }
            multiply_on_unit(&m);
            add_unit_sums(w, tile, d, m.n_rows, sums, UINT64_C(1) << r);
        }
    }
}

#endif
