/* Row form: values as a matrix unit multiplies them, for a line of columns at a time. */
#ifndef ATTN_KERNEL_ATTENTION_UNIT_LINE_H
#define ATTN_KERNEL_ATTENTION_UNIT_LINE_H

#include "kernel/attention/keys.h"
#include "kernel/product_unit.h"

#ifdef MATRIX_UNIT

/* Columns of values from d on, those of UNIT_LINE tiles at most, for the products of few rows. */
typedef struct {
    ptrdiff_t d;
    ptrdiff_t n_columns;
    bool zipped; /* in the order of u_zip_element */
} value_line;

/* They, of UNIT_TERMS keys, as pairs in the slab, and 0 where there is none. */
static void
stage_value_line(work *w, const value_line *line, ptrdiff_t key, ptrdiff_t n)
{
    static const uint16_t none[UNIT_SQUARE];
    const attn_array *value = &w->p->value;
    const char *from = value_at(w, key) + line->d * value->column_stride;
    ptrdiff_t used = (n + TERMS - 1) / TERMS;

    if (!line->zipped) {
        fetch_rows(value, from, n, w->p->value_dim, line->n_columns, LINE_COLUMNS,
                   w->slab);
        memset(w->slab + used * LINE_COLUMNS, 0,
               (size_t)((UNIT_OPERANDS - used) * LINE_COLUMNS) * sizeof(operand));
        return;
    }
    for (ptrdiff_t i = 0; i < UNIT_OPERANDS; i++, from += TERMS * value->row_stride) {
        const uint16_t *low = (const uint16_t *)(const void *)from;
        const uint16_t *up = (const uint16_t *)(const void *)(from + value->row_stride);
        operand *to = w->slab + i * LINE_COLUMNS;
        for (ptrdiff_t c = 0; c < line->n_columns; c += UNIT_SQUARE) {
            const uint16_t *a = TERMS * i < n ? low + c : none;
            const uint16_t *b = TERMS * i + 1 < n ? up + c : none;
            v_store_pairs(to + c, u_zip(a, b, false));
            v_store_pairs(to + c + LANES, u_zip(a, b, true));
        }
    }
}

/* Of staged values 0 remains where a row may not see them; `key` is of the block. */
static void
keep_row_values(const work *w, ptrdiff_t row, ptrdiff_t key)
{
    for (ptrdiff_t i = 0; i < UNIT_OPERANDS * LINE_COLUMNS; i++) {
        ptrdiff_t k = key + i / LINE_COLUMNS * TERMS;
        w->slab[i] = keep_terms(w->slab[i], w->see[row][k / 64] >> (k % 64));
    }
}

#endif
#endif
