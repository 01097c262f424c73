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

/* In the slab, if columns are not adjacent; NULL where there is none. */
static const linear_bias *
fetch_bias(const linear_work *w, linear_bias *b)
{
    real *staged = (real *)(void *)w->slab;
    const attn_array *bias = &w->l->bias;
    ptrdiff_t n = w->task->n_columns, n_rest = n % LANES;
    const char *from = bias->data + w->task->first_column * bias->column_stride;

    if (bias->data == NULL) {
        return NULL;
    }
    b->whole = (const real *)(const void *)from;
    if (bias->column_stride != sizeof(real)) {
        load_row(staged, from, bias->column_stride, n, REAL_DTYPE);
        b->whole = staged;
    }
    v_store(b->rest, v_set1(0));
    memcpy(b->rest, b->whole + n - n_rest, (size_t)n_rest * sizeof(real));
    return b;
}

/* to = the activation of a row and the bias. A row has room for whole vectors, `to` not unless
 * it is the row. */
static void
activate_row(const linear_work *w, real *to, real *row, const linear_bias *bias)
{
    ptrdiff_t n = w->task->n_columns, whole = n / LANES * LANES;
    attn_activation activation = w->l->activation;

    if (to == row && bias == NULL && activation == ATTN_IDENTITY) {
        return;
    }
    activate(to, row, bias == NULL ? NULL : bias->whole, LANES, whole / LANES,
             activation);
    if (whole < n) {
        real *rest = row + whole;
        activate(rest, rest, bias == NULL ? NULL : bias->rest, LANES, 1, activation);
        memmove(to + whole, rest, (size_t)(n - whole) * sizeof(real));
    }
}

/* Stores rows of outputs that lie in rows. */
static void
store_linear_rows(linear_work *w)
{
    const attn_array *output = &w->l->output;
    ptrdiff_t n_columns = w->task->n_columns, width = row_width(w);
    bool in_place = is_plain(output, n_columns) && !is_changed(w->l);
    linear_bias room;
    const linear_bias *bias = fetch_bias(w, &room);

    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        real *row = w->output + r * width;
        char *to = output_at(w, output, r, 0);
        activate_row(w, in_place ? (real *)(void *)to : row, row, bias);
        if (in_place) {
            continue;
        }
        for (ptrdiff_t k = 0; k < n_columns && is_changed(w->l); k += SLAB_COLUMNS) {
            change_row(w, r, k, least(n_columns - k, SLAB_COLUMNS), row + k);
        }
        store_row(to, output->column_stride, row, n_columns, output->dtype);
    }
}

#endif
