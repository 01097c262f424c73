/* Packed weights: what is read together lies together, in the order of reading. */
#ifndef ATTN_KERNEL_LINEAR_PANELS_H
#define ATTN_KERNEL_LINEAR_PANELS_H

#include "kernel/linear/task.h"
#include "kernel/matrix.h"

/* Bytes that row form asks for before it reads them: the second-level cache, or the first. */
enum { PANEL_AHEAD = 2048, PANEL_NEAR_AHEAD = 8192 };

/* Where the panel that begins at a column of the task has row `first` of a block. */
static const char *
panel_at(const linear_work *w, ptrdiff_t first, ptrdiff_t column)
{
    const attn_linear_problem *l = w->l;
    ptrdiff_t terms = attn_packed_terms(l->weight.dtype);
    ptrdiff_t n_rows = least(l->n_in - first, ATTN_BLOCK);
    ptrdiff_t panel = (w->task->first_column + column) / ATTN_PANEL_COLUMNS;
    ptrdiff_t n_panels = (l->n_out + ATTN_PANEL_COLUMNS - 1) / ATTN_PANEL_COLUMNS;
    ptrdiff_t row = first / terms * n_panels + panel * ((n_rows + terms - 1) / terms);

    return l->weight.data + row * l->weight.row_stride;
}

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

/* n rows of a panel of 16-bit numbers as floats. */
static void
stage_panel(operand *to, const char *from, ptrdiff_t n, attn_dtype dtype)
{
    const ptrdiff_t row = ATTN_PANEL_COLUMNS * sizeof(uint16_t);

    if (dtype == ATTN_F16) {
        load_row(to, from, sizeof(uint16_t), n * ATTN_PANEL_COLUMNS, dtype);
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

/* What is wanted after the block from row `first` on of a panel: that of the task's next
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
