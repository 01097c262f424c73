/* Keys as a matrix unit multiplies them. */
#ifndef ATTN_KERNEL_ATTENTION_UNIT_KEYS_H
#define ATTN_KERNEL_ATTENTION_UNIT_KEYS_H

#include "kernel/attention/keys.h"
#include "kernel/product_unit.h"

#ifdef MATRIX_UNIT

/* Can tiles of n keys be read where they lie? */
static bool
are_key_tiles(const work *w, ptrdiff_t n)
{
    return n % UNIT_ROWS == 0 && w->p->head_dim % UNIT_TERMS == 0 &&
           reads_in_place(&w->p->key, w->p->head_dim, AS_OPERANDS);
}

/* Columns from `column` on, n_columns of them, of n keys from `first` on, in rows of whole tiles:
 * where they lie, or brought into the slab, with zeros behind them. */
static matrix
fetch_key_tiles(work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t column,
                ptrdiff_t n_columns)
{
    const attn_array *key = &w->p->key;
    const char *from = key_at(w, first) + column * key->column_stride;
    ptrdiff_t used = (n_columns + TERMS - 1) / TERMS;
    ptrdiff_t width = round_up(used, UNIT_OPERANDS);

    if (are_key_tiles(w, n)) {
        return (matrix){(const operand *)(const void *)from,
                        key->row_stride / (ptrdiff_t)sizeof(operand)};
    }
    for (ptrdiff_t j = 0; j < n; j++, from += key->row_stride) {
        operand *to = w->slab + j * width;
        stage_row(to, from, key->column_stride, n_columns, key->dtype);
        memset(to + used, 0, (size_t)(width - used) * sizeof *to);
    }
    return (matrix){w->slab, width};
}

#endif
#endif
