/* Tile form: values as a matrix unit multiplies them: tiles whose rows are columns. */
#ifndef ATTN_KERNEL_ATTENTION_UNIT_STAGE_H
#define ATTN_KERNEL_ATTENTION_UNIT_STAGE_H

#include "kernel/attention/keys.h"
#include "kernel/product_unit.h"

#ifdef MATRIX_UNIT

/* Columns of values from d on in the slab: for UNIT_ROWS columns the tiles of UNIT_TERMS keys each,
 * one behind the other, [column][pair of keys] and 0 where there is none. */
typedef struct {
    ptrdiff_t first; /* key */
    ptrdiff_t d;
    ptrdiff_t n_columns;
    ptrdiff_t n_steps; /* of UNIT_TERMS keys */
    bool finite;
} value_tiles;

/* The tile of n <= UNIT_TERMS keys, from an address on, and n_columns <= UNIT_ROWS columns. */
static void
stage_value_tile(const attn_array *value, const char *from, ptrdiff_t n,
                 ptrdiff_t n_columns, operand *to)
{
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
    for (int i = 0; i < LANES; i++) {
        v_store_pairs(to + i * UNIT_OPERANDS, a[i]);
    }
}

/* Two tiles, `step` operands apart, of UNIT_TERMS keys with twice UNIT_ROWS adjacent columns. */
static void
stage_two_tiles(const char *from, ptrdiff_t row, operand *to, ptrdiff_t step)
{
    v_operand a[LANES];

    for (int high = 0; high < 2; high++) {
        for (int i = 0; i < LANES; i++) {
            const char *at = from + TERMS * i * row;
            a[i] = u_zip((const uint16_t *)(const void *)at,
                         (const uint16_t *)(const void *)(at + row), high);
        }
        v_transpose_operands(a);
        for (int i = 0; i < LANES; i++) {
            int column = u_zip_element(i) + 4 * high;
            v_store_pairs(to + column / UNIT_ROWS * step +
                              column % UNIT_ROWS * UNIT_OPERANDS,
                          a[i]);
        }
    }
}

/* Brings n keys' values into the slab. */
static void
stage_value_tiles(work *w, const value_tiles *values, ptrdiff_t n)
{
    const attn_array *value = &w->p->value;
    bool adjacent = value->column_stride == (ptrdiff_t)sizeof(uint16_t);
    ptrdiff_t step = values->n_steps * UNIT_TILE;

    for (ptrdiff_t k = 0; k < n; k += UNIT_TERMS) {
        const char *from =
            value_at(w, values->first + k) + values->d * value->column_stride;
        operand *to = w->slab + k / UNIT_TERMS * UNIT_TILE;
        ptrdiff_t n_keys = least(n - k, UNIT_TERMS), c = 0;
        prefetch next =
            prefetch_of(value, from + UNIT_TERMS * value->row_stride, values->n_columns,
                        least(n - k - n_keys, UNIT_TERMS));
        prefetch_near(&next);
        for (; c + UNIT_SQUARE <= values->n_columns && adjacent && n_keys == UNIT_TERMS;
             c += UNIT_SQUARE) {
            stage_two_tiles(from + c * value->column_stride, value->row_stride,
                            to + c / UNIT_ROWS * step, step);
        }
        for (; c < values->n_columns; c += UNIT_ROWS) {
            stage_value_tile(value, from + c * value->column_stride, n_keys,
                             least(values->n_columns - c, UNIT_ROWS),
                             to + c / UNIT_ROWS * step);
        }
    }
}

static bool
are_tiles_finite(const work *w, const value_tiles *values)
{
    ptrdiff_t n_tiles =
        (values->n_columns + UNIT_ROWS - 1) / UNIT_ROWS * values->n_steps;

    return all_finite((matrix){w->slab, UNIT_OPERANDS}, n_tiles * UNIT_ROWS,
                      UNIT_OPERANDS);
}

#endif
#endif
