/* What is done last to outputs of a linear task that lie in rows. */
#ifndef ATTN_KERNEL_LINEAR_FINISH_ROWS_H
#define ATTN_KERNEL_LINEAR_FINISH_ROWS_H

#include "kernel/activate.h"
#include "kernel/linear/finish.h"

/* The bias of a task's columns: those of whole vectors where they lie, and the rest, with 0. */
typedef struct {
    const real *whole;
    real rest[LANES];
} linear_bias;

/* At `staged`, if columns are not adjacent; NULL where there is none. */
static const linear_bias *
fetch_bias(const linear_work *w, linear_bias *b, real *staged)
{
    const attn_array *bias = &w->l->bias;
    ptrdiff_t n = w->task->n_columns, n_rest = n % LANES;

    if (bias->data == NULL) {
        return NULL;
    }
    const char *from = bias->data + w->task->first_column * bias->column_stride;
    b->whole = (const real *)(const void *)from;
    if (bias->column_stride != sizeof(real)) {
        load_row(staged, from, bias->column_stride, n, REAL_DTYPE);
        b->whole = staged;
    }
    v_store(b->rest, v_set1(0));
    memcpy(b->rest, b->whole + n - n_rest, (size_t)n_rest * sizeof(real));
    return b;
}

/* Outputs of a task: some rows' columns. */
typedef struct {
    ptrdiff_t row, n_rows, column, n_columns;
} linear_part;

/* to = the activation of a part's row and the bias. A row has room for whole vectors, `to` not
 * unless it is the row. */
static void
activate_row(const linear_work *w, const linear_part *p, real *to, real *row,
             const linear_bias *bias)
{
    ptrdiff_t whole = p->n_columns / LANES * LANES, left = p->n_columns - whole;
    attn_activation activation = w->l->activation;

    if (to == row && bias == NULL && activation == ATTN_IDENTITY) {
        return;
    }
    activate(to, row, bias == NULL ? NULL : bias->whole + p->column, LANES,
             whole / LANES, activation);
    if (left > 0) {
        real *rest = row + whole;
        activate(rest, rest, bias == NULL ? NULL : bias->rest, LANES, 1, activation);
        memmove(to + whole, rest, (size_t)left * sizeof(real));
    }
}

/* Stores outputs that lie in rows: if their columns are not all of the task's, whole vectors or
 * its last ones. */
static void
store_linear_part(linear_work *w, const linear_part *p, const linear_bias *bias)
{
    const attn_array *output = &w->l->output;
    bool in_place = is_plain(output, p->n_columns) && !is_changed(w->l);

    for (ptrdiff_t r = p->row; r < p->row + p->n_rows; r++) {
        real *row = w->output + r * row_width(w) + p->column;
        char *to = output_at(w, output, r, p->column);
        activate_row(w, p, in_place ? (real *)(void *)to : row, row, bias);
        if (in_place) {
            continue;
        }
        for (ptrdiff_t k = 0; k < p->n_columns && is_changed(w->l); k += SLAB_COLUMNS) {
            ptrdiff_t n = least(p->n_columns - k, SLAB_COLUMNS);
            change_row(w, r, p->column + k, n, row + k);
        }
        store_row(to, output->column_stride, row, p->n_columns, output->dtype);
    }
}

/* Stores all of them. */
static void
store_linear_rows(linear_work *w)
{
    linear_part all = {0, w->task->n_rows, 0, w->task->n_columns};
    linear_bias room;

    store_linear_part(w, &all, fetch_bias(w, &room, (real *)(void *)w->slab));
}

#endif
