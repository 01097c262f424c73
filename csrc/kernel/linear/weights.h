/* The blocks of W that a linear task multiplies by, from W as it lies in memory, or packed:
 * packed weights are in the order in which tasks read them. */
#ifndef ATTN_KERNEL_LINEAR_WEIGHTS_H
#define ATTN_KERNEL_LINEAR_WEIGHTS_H

#include "kernel/linear/task.h"
#include "kernel/gemm/product.h"
#include "kernel/operands/prefetch.h"

/* Rows first .. first + n - 1 of W, with the task's columns. */
static matrix
fetch_weights(linear_work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t width)
{
    return fetch_rows(&w->l->weight, weight_at(w, first), n, w->l->n_out,
                      w->task->n_columns, width, w->slab);
}

/* The transpose of W. */
static attn_array
transposed_weight(const linear_work *w)
{
    attn_array columns = w->l->weight;

    columns.row_stride = w->l->weight.column_stride;
    columns.column_stride = w->l->weight.row_stride;
    return columns;
}

/* The same rows, transposed: (columns, rows). */
static matrix
fetch_columns(linear_work *w, ptrdiff_t first, ptrdiff_t n)
{
    attn_array columns = transposed_weight(w);
    return fetch_lines(&columns, weight_at(w, first), w->task->n_columns, w->l->n_in, n,
                       w->slab);
}

/* What to prefetch during the block of rows before `first`: the next block, or the first one of
 * the columns that this task or another takes next. */
static prefetch
weights_prefetch(const linear_work *w, ptrdiff_t first)
{
    const attn_array *weight = &w->l->weight;
    ptrdiff_t n_columns = w->task->n_columns, column = w->task->first_column;

    if (first >= w->l->n_in) {
        first = 0;
        column += n_columns;
        column = column < w->l->n_out ? column : 0;
        n_columns = least(n_columns, w->l->n_out - column);
    }
    const char *at =
        weight->data + first * weight->row_stride + column * weight->column_stride;
    ptrdiff_t n_rows = least(w->l->n_in - first, ATTN_BLOCK);
    if (attn_is_transposed(w->l)) {
        attn_array columns = transposed_weight(w);
        return prefetch_of(&columns, at, n_rows, n_columns);
    }
    return prefetch_of(weight, at, n_columns, n_rows);
}

/* How many bytes ahead row form prefetches to the second-level cache, and to the first. */
enum { PANEL_AHEAD = 2048, PANEL_NEAR_AHEAD = 8192 };

#if TERMS == 1 && REAL_BITS == 32

/* Two rows of a panel of pairs of bfloat16 numbers. */
static INLINE void
widen_pairs(operand *to, const char *from)
{
    typedef uint32_t bits __attribute__((may_alias));
    const bits *pairs = (const bits *)(const void *)from;
    bits *even = (bits *)(void *)to, *odd = even + ATTN_PANEL_COLUMNS;

    for (int i = 0; i < ATTN_PANEL_COLUMNS; i++) {
        even[i] = pairs[i] << 16;
        odd[i] = pairs[i] & 0xffff0000;
    }
}

/* n rows of a panel of any dtype as floats. */
static void
stage_panel(operand *to, const char *from, ptrdiff_t n, attn_dtype dtype)
{
    const ptrdiff_t size = attn_storage_of(dtype)->bytes,
                    row = ATTN_PANEL_COLUMNS * size;

    if (attn_packed_terms(dtype) == 1) {
        load_row(to, from, size, n * ATTN_PANEL_COLUMNS, dtype);
        return;
    }
    for (ptrdiff_t k = 0; k < n; k += 2) {
        for (ptrdiff_t at = 0; at < 2 * row; at += CACHE_LINE) {
            __builtin_prefetch(from + k * row + PANEL_AHEAD + at, 0, 2);
        }
        widen_pairs(to + k * ATTN_PANEL_COLUMNS, from + k * row);
    }
}

#endif

/* Rows first .. first + n - 1 of a panel as operands: where they lie, or in the slab. */
static matrix
fetch_panel(linear_work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t column)
{
    const char *from = panel_at(w, first, column);

    (void)n;
#if TERMS == 1 && REAL_BITS == 32
    if (w->l->weight.dtype != OPERAND_DTYPE) {
        stage_panel(w->slab, from, n, w->l->weight.dtype);
        from = (const char *)w->slab;
    }
#endif
    return (matrix){(const operand *)(const void *)from, ATTN_PANEL_COLUMNS};
}

/* What to prefetch during a panel's block from row `first` on: the same block of the task's next
 * panel, or the next block of its first one. */
static prefetch
panel_prefetch(const linear_work *w, ptrdiff_t first, ptrdiff_t column)
{
    ptrdiff_t row = w->l->weight.row_stride;

    column += ATTN_PANEL_COLUMNS;
    if (column >= w->task->n_columns) {
        column = 0;
        first += ATTN_BLOCK;
    }
    if (first >= w->l->n_in) {
        return (prefetch){.n_rows = 0};
    }
    return (prefetch){.at = panel_at(w, first, column),
                      .row = row,
                      .bytes = row,
                      .n_rows = least(w->l->n_in - first, ATTN_BLOCK) /
                                attn_packed_terms(w->l->weight.dtype)};
}

#endif
