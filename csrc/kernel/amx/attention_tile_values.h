/* Tile form: weighted sums of values, O[d][lane], on a matrix unit. Values are transposed for
 * it, into tiles whose rows are columns of values. */
#ifndef ATTN_KERNEL_AMX_ATTENTION_TILE_VALUES_H
#define ATTN_KERNEL_AMX_ATTENTION_TILE_VALUES_H

#include "kernel/amx/product.h"
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

/* The product of a tile's weights and values, which is added to the chunk's output; `sums` are
 * those of a square. */
static NOINLINE unit_product
value_product(const work *w, int tile, const span *s, const value_tiles *values,
              real *sums, const prefetch next[2])
{
    return (unit_product){
        .c = sums,
        .c_row = WIDTH,
        .a = values->at + (s->first - values->first) / UNIT_TERMS * UNIT_TILE,
        .a_row = UNIT_OPERANDS,
        .a_tile = values->n_steps * UNIT_TILE,
        .a_step = UNIT_TILE,
        .b = (const operand *)(const void *)scores_of(w, tile),
        .b_row = WIDTH,
        .n_rows = values->n_columns,
        .n_vec = tile_vectors(&w->rows, tile),
        .n_steps = (s->n + UNIT_TERMS - 1) / UNIT_TERMS,
        .output = w->chunk.output[tile] + values->d * WIDTH,
        .keep = w->chunk.empty[tile] ? NULL : w->rescale + (ptrdiff_t)tile * WIDTH,
        .lanes = ~UINT64_C(0),
        .next = {next[0], next[1]}};
}

/* The same row by row: where a value that some row may not see is not finite. */
static NOINLINE void
add_seen_values(const work *w, const block *b, int tile, const span *s,
                const unit_product *whole)
{
    operand seen[2 * ATTN_BLOCK / UNIT_TERMS * UNIT_TILE];
    const ptrdiff_t n_steps = whole->n_steps;

    for (ptrdiff_t c = 0; c < whole->n_rows; c += UNIT_SQUARE) {
        unit_product m = *whole;
        m.n_rows = least(whole->n_rows - c, UNIT_SQUARE);
        m.output += c * WIDTH;
        m.a = seen;
        m.a_tile = n_steps * UNIT_TILE;
        for (ptrdiff_t r = 0; r < tile_rows(&w->rows, tile); r++) {
            for (ptrdiff_t j = 0; j < m.n_rows; j += UNIT_ROWS) {
                keep_seen_values(w, (ptrdiff_t)tile * WIDTH + r, s->first - b->first,
                                 whole->a + (c + j) / UNIT_ROWS * whole->a_tile,
                                 n_steps, seen + j / UNIT_ROWS * m.a_tile);
            }
            m.lanes = UINT64_C(1) << r;
            multiply_on_unit(&m);
        }
    }
}

/* Adds the products of a tile's weights and values to the chunk's output. */
static void
add_values(work *w, const block *b, int tile, const span *s, const value_tiles *values,
           const prefetch next[2])
{
    _Alignas(CACHE_LINE) real sums[UNIT_SQUARE * WIDTH];
    unit_product m = value_product(w, tile, s, values, sums, next);

    if (values->finite || !s->masked) {
        multiply_on_unit(&m);
    } else {
        add_seen_values(w, b, tile, s, &m);
    }
}

#endif
