/* Row form: weighted sums of values as a matrix unit adds them up, but by vectors: for one row or
 * two, whose values come from memory, and are read row by row, not some columns of all rows
 * after others. Of each UNIT_TERMS terms the even ones and the odd ones are a chain from 0 each. */
#ifndef ATTN_KERNEL_ATTENTION_UNIT_CHAINS_H
#define ATTN_KERNEL_ATTENTION_UNIT_CHAINS_H

#include "kernel/attention/stream.h"
#include "kernel/product_unit.h"

#ifdef MATRIX_UNIT

enum { CHAINED = 4 /* vectors of columns at a time */ };

/* Adds UNIT_TERMS weighted values from an address on to `wide` vectors of each row's sums;
 * `weights` are the operands of the first row. */
static INLINE void
chain_values(const operand *weights, const char *at, ptrdiff_t value_row,
             const int rows, const int wide, real *sums, ptrdiff_t width)
{
    v_real even[STREAM_ROWS * CHAINED], odd[STREAM_ROWS * CHAINED];

    for (int i = 0; i < rows * wide; i++) {
        even[i] = odd[i] = v_set1(0);
    }
    for (int k = 0; k < UNIT_OPERANDS; k++, at += TERMS * value_row) {
        for (int v = 0; v < wide; v++) {
            v_real low = v_load_bf16((const uint16_t *)(const void *)at + v * LANES);
            v_real high = v_load_bf16((const uint16_t *)(const void *)(at + value_row) +
                                      v * LANES);
            for (int r = 0; r < rows; r++) {
                v_operand p = v_set1_operand(weights[r * ATTN_BLOCK + k]);
                even[r * wide + v] = v_fma(u_even(p), low, even[r * wide + v]);
                odd[r * wide + v] = v_fma(u_odd(p), high, odd[r * wide + v]);
            }
        }
    }
    for (int i = 0; i < rows * wide; i++) {
        real *to = sums + i / wide * width + i % wide * LANES;
        v_store(to, v_add(v_load(to), v_add(even[i], odd[i])));
    }
}

/* Likewise all vectors. */
static INLINE void
chain_group(work *w, const char *at, ptrdiff_t k, const int rows)
{
    const operand *weights = (const operand *)(const void *)w->scores + k / TERMS;
    ptrdiff_t width = w->value_width, d = 0;

    for (; d + CHAINED * LANES <= width; d += CHAINED * LANES) {
        chain_values(weights, at + d * (ptrdiff_t)sizeof(uint16_t),
                     w->p->value.row_stride, rows, CHAINED, w->row_sums + d, width);
    }
    for (; d < width; d += LANES) {
        chain_values(weights, at + d * (ptrdiff_t)sizeof(uint16_t),
                     w->p->value.row_stride, rows, 1, w->row_sums + d, width);
    }
}

/* Are a block's values added up so? */
static bool
has_value_chains(const work *w, const block *b)
{
    return w->task->n_rows <= STREAM_ROWS && w->p->value_dim > LINE_COLUMNS &&
           b->coverage == ATTN_SEE_ALL && (b->end - b->first) % UNIT_TERMS == 0 &&
           w->value_width == w->p->value_dim &&
           reads_in_place(&w->p->value, w->p->value_dim, AS_TWO_ROWS);
}

#endif
#endif
