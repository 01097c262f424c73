/* Row form: weighted sums of values on a matrix unit, O[row][d]. */
#ifndef ATTN_KERNEL_ATTENTION_UNIT_ROW_VALUES_H
#define ATTN_KERNEL_ATTENTION_UNIT_ROW_VALUES_H

#include "kernel/attention/row_values.h"
#include "kernel/attention/unit_chains.h"
#include "kernel/attention/unit_line.h"

#ifdef MATRIX_UNIT

/* The sums of a line over the block's keys, for all rows; or, if `seen`, for one of them, of what
 * it may see. Returns whether all values are finite, if some may not be seen. */
static bool
sum_line(work *w, const block *b, const value_line *line, ptrdiff_t row,
         const bool seen, real *weight_sums, real *sums)
{
    const char *weights = (const char *)w->scores;
    ptrdiff_t n_keys = b->end - b->first;
    bool finite = true;

    u_clear_line();
    for (ptrdiff_t k = 0; k < n_keys; k += UNIT_TERMS) {
        if (line->d == 0 && !seen) {
            begin_group(w, b, k, weight_sums);
        }
        stage_value_line(w, line, b->first + k, least(n_keys - k, UNIT_TERMS));
        if (seen) {
            keep_row_values(w, row, k);
        } else if (b->coverage != ATTN_SEE_ALL) {
            matrix all = {w->slab, LINE_COLUMNS};
            finite = finite &&
                     all_finite(all, UNIT_OPERANDS, round_up(line->n_columns, LANES));
        }
        u_publish(w->slab);
        u_multiply_line(weights + k * (ptrdiff_t)sizeof(uint16_t),
                        ATTN_BLOCK * sizeof(real), (const char *)w->slab,
                        LINE_COLUMNS * sizeof(operand));
    }
    u_store_line(sums, LINE_COLUMNS * sizeof(real));
    return finite;
}

/* One row of a line's sums, in the order of columns. */
static void
take_line(const value_line *line, const real *sums, real *to)
{
    for (ptrdiff_t c = 0; c < line->n_columns; c += UNIT_SQUARE) {
        v_real low = v_load(sums + c), high = v_load(sums + c + LANES);
        if (line->zipped) {
            u_unzip(&low, &high);
        }
        v_store(to + c, low);
        if (c + LANES < line->n_columns) {
            v_store(to + c + LANES, high);
        }
    }
}

static NOINLINE void
sum_in_chains(work *w, const block *b, real *weight_sums)
{
    ptrdiff_t n_rows = w->task->n_rows;
    uint32_t control;

    memset(w->row_sums, 0, (size_t)(n_rows * w->value_width) * sizeof(real));
    for (ptrdiff_t k = 0; k < b->end - b->first; k += KEY_GROUP) {
        const char *at = value_at(w, b->first + k);
        begin_group(w, b, k, weight_sums);
        control = u_flush();
        if (n_rows == 1) {
            chain_group(w, at, k, 1);
        } else {
            chain_group(w, at, k, 2);
        }
        u_keep(control);
    }
}

/* Sums of the block's weights, and of its weighted values. */
static void
sum_rows(work *w, const block *b, real *weight_sums)
{
    const attn_array *value = &w->p->value;
    bool adjacent = value->column_stride == (ptrdiff_t)sizeof(uint16_t);
    real sums[UNIT_ROWS * LINE_COLUMNS];
    value_line line = {.d = 0};

    if (has_value_chains(w, b)) {
        sum_in_chains(w, b, weight_sums);
        return;
    }
    do { /* Dv may be 0 */
        line.n_columns = least(w->p->value_dim - line.d, LINE_COLUMNS);
        line.zipped = adjacent && line.n_columns % UNIT_SQUARE == 0;
        bool finite = sum_line(w, b, &line, 0, false, weight_sums, sums);
        for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
            if (!finite) {
                sum_line(w, b, &line, r, true, NULL, sums);
            }
            take_line(&line, sums + r * LINE_COLUMNS,
                      w->row_sums + r * w->value_width + line.d);
        }
        line.d += LINE_COLUMNS;
    } while (line.d < w->p->value_dim);
}

#endif
#endif
