/* Outputs that the product for many rows stores itself, from its sums in registers, so that the
 * next product does not wait for them to be written and read again. */
#ifndef ATTN_KERNEL_LINEAR_DIRECT_H
#define ATTN_KERNEL_LINEAR_DIRECT_H

#include "kernel/gemm/many_rows.h"
#include "kernel/linear/epilogue.h"
#include "kernel/linear/input.h"

/* Are an array's rows adjacent reals, evenly apart? */
static bool
has_even_reals(const attn_linear_problem *l, const attn_array *array)
{
    return is_plain(array, PART_COLUMNS) && has_even_rows(l, array);
}

/* Are outputs bfloat16 numbers, adjacent and evenly apart? */
static bool
has_even_halves(const attn_linear_problem *l)
{
    const attn_array *output = &l->output;

    return output->dtype == ATTN_BF16 && output->column_stride == sizeof(uint16_t) &&
           has_even_rows(l, output);
}

/* Does the product store whole groups of rows of whole parts? */
static bool
stores_directly(const attn_linear_problem *l)
{
    bool adds = l->residual.data != NULL;

    return l->activation == ATTN_IDENTITY && l->times.data == NULL &&
           ((has_even_reals(l, &l->output) &&
             (!adds || has_even_reals(l, &l->residual))) ||
            (has_even_halves(l) && !adds));
}

/* Columns of a task, a part of a panel. Where the product stores outputs directly, its sums include
 * the bias, and `output` and `residual` (or NULL) are those of row 0. */
typedef struct {
    ptrdiff_t column, n_columns;
    bool direct;
    char *output;
    const char *residual;
} linear_columns;

static linear_columns
open_columns(const linear_work *w, ptrdiff_t column, bool direct)
{
    const attn_linear_problem *l = w->l;
    ptrdiff_t n_columns = least(w->task->n_columns - column, PART_COLUMNS);
    linear_columns p = {.column = column, .n_columns = n_columns};

    if (direct && n_columns == PART_COLUMNS) {
        p.direct = true;
        p.output = output_at(w, &l->output, 0, column);
        if (l->residual.data != NULL) {
            p.residual = output_at(w, &l->residual, 0, column);
        }
    }
    return p;
}

/* Prefetches outputs of the group from row r on, whose lines storing would otherwise wait for.
 * Inline: compilers drop calls of functions that only prefetch. */
static INLINE void
prefetch_outputs(const linear_work *w, const linear_columns *p, ptrdiff_t r)
{
    const attn_array *output = &w->l->output;
    const char *at = p->output + r * output->row_stride;
    prefetch rows = prefetch_of(output, at, PART_COLUMNS, GROUP_ROWS);

    if (r + GROUP_ROWS <= w->task->n_rows) {
        prefetch_rows(&rows, 0, GROUP_ROWS);
    }
}

/* Sets where the sums of the group from row r on go: to C, or to the output. */
static void
place_sums(const linear_work *w, const linear_columns *p, ptrdiff_t r,
           many_rows_product *m)
{
    const attn_array *output = &w->l->output, *residual = &w->l->residual;

    m->to = (char *)(void *)m->c;
    m->to_row = m->c_row * (ptrdiff_t)sizeof(real);
    m->rounds = false;
    m->residual = NULL;
    if (!p->direct || r + GROUP_ROWS > w->task->n_rows) {
        return;
    }
    m->to = p->output + r * output->row_stride;
    m->to_row = output->row_stride;
    m->rounds = output->dtype != REAL_DTYPE;
    prefetch_outputs(w, p, r + GROUP_ROWS);
    if (p->residual != NULL) {
        const char *at = p->residual + r * residual->row_stride;
        prefetch rows = prefetch_of(residual, at, PART_COLUMNS, GROUP_ROWS);
        m->residual = (const real *)(const void *)at;
        m->residual_row = residual->row_stride / (ptrdiff_t)sizeof(real);
        prefetch_near(&rows);
    }
}

/* Stores what the product did not: rows behind the last group, or a whole part. */
static void
store_rest(linear_work *w, const linear_columns *p, const linear_bias *bias)
{
    ptrdiff_t n_rows = w->task->n_rows;
    ptrdiff_t n_stored = p->direct ? n_rows / GROUP_ROWS * GROUP_ROWS : 0;
    linear_part rest = {n_stored, n_rows - n_stored, p->column, p->n_columns};

    store_linear_part(w, &rest, p->direct ? NULL : bias);
}

#endif
