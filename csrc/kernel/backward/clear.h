/* Gradients are cleared before a part adds to them. In the end each NaN becomes the
 * same one, because CPUs make NaNs of different signs. */
#ifndef ATTN_KERNEL_BACKWARD_CLEAR_H
#define ATTN_KERNEL_BACKWARD_CLEAR_H

#include "kernel/backward/tile.h"
#include "kernel/math/exp.h"

/* What is done to gradients: sums become 0; or, once they are complete, their NaNs become the same
 * one, and gradients of 16 bits are rounded from them. */
typedef enum { CLEAR, FINISH } visit;

/* Makes each NaN of n numbers the same one. */
static void
unify_nans(real *row, ptrdiff_t n)
{
    ptrdiff_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        v_store(row + i, quiet_nan_or(v_load(row + i)));
    }
    for (; i < n; i++) {
        ONE_BY_ONE;
        row[i] = one_nan_or(row[i]);
    }
}

/* Clears or finishes n rows of an array of gradients, whose sums are there or in the workspace. */
static ONE_COPY void
visit_rows(char *row, const attn_array *array, gradient_rows sums, ptrdiff_t n,
           ptrdiff_t n_columns, visit what)
{
    ptrdiff_t columns = n_columns, size = attn_storage_of(array->dtype)->bytes;

    if (sums.row == n_columns &&
        (!is_rounded(array) || array->row_stride == n_columns * size)) {
        columns *= n; /* one line */
        n = n > 0;
    }
    for (; n > 0; n--, sums.at += sums.row, row += array->row_stride) {
        if (what == CLEAR) {
            memset(sums.at, 0, (size_t)columns * sizeof(real));
            continue;
        }
        unify_nans(sums.at, columns);
        if (is_rounded(array)) {
            store_row(row, size, sums.at, columns, array->dtype);
        }
    }
}

/* Is no batch before b the same one along the axes of an array, packed or not? */
static bool
is_first_batch(const attn_array *array, const int64_t *starts, const attn_batch *batch,
               ptrdiff_t b)
{
    for (int axis = batch->n_axes - 1; axis >= 0 && starts == NULL; axis--) {
        if (array->batch_stride[axis] == 0 && b % batch->shape[axis] != 0) {
            return false;
        }
        b /= batch->shape[axis];
    }
    return true;
}

static void
visit_rows_of_keys(const backward_work *w, const attn_array *array, ptrdiff_t n_columns,
                   ptrdiff_t first, ptrdiff_t end, visit what)
{
    const attn_problem *p = &w->g->attention;

    if (what == FINISH ||
        is_first_batch(array, attn_key_starts(p->packed), &p->batch, w->b)) {
        visit_rows(key_grad_row(w, array, first), array, key_sums_from(w, array, first),
                   end - first, n_columns, what);
    }
}

/* Clears or finishes the gradients of keys and values from `first` up to `end`. */
static ONE_COPY void
visit_keys(const backward_work *w, ptrdiff_t first, ptrdiff_t end, visit what)
{
    const attn_backward_problem *g = w->g;

    if (w->part->key) {
        visit_rows_of_keys(w, &g->grad_key, g->attention.head_dim, first, end, what);
    }
    if (w->part->value) {
        visit_rows_of_keys(w, &g->grad_value, g->attention.value_dim, first, end, what);
    }
}

/* Clears gradients of keys and values up to `end` that no tile has seen. */
static ONE_COPY void
clear_keys(backward_work *w, ptrdiff_t end)
{
    if (w->fresh_key < end) {
        visit_keys(w, w->fresh_key, end, CLEAR);
        w->fresh_key = end;
    }
}

/* Clears or finishes the gradients of the queries of tiles `first` .. end - 1. */
static ONE_COPY void
visit_queries(backward_work *w, ptrdiff_t first, ptrdiff_t end, visit what)
{
    const attn_problem *p = &w->g->attention;
    const attn_array *array = &w->g->grad_query;

    for (ptrdiff_t t = first; t < end && w->part->query; t++) {
        choose_tile(w, t);
        for (ptrdiff_t r = 0, next; r < w->task.n_rows; r = next) {
            next = end_of_head(&w->task, r);
            visit_rows(query_row(w, array, r), array, query_sums_from(w, r), next - r,
                       p->head_dim, what);
        }
    }
}

/* Before any tile: gradients of queries are cleared in the first of the batches that share them. */
static void
find_fresh_tiles(backward_work *w)
{
    const attn_problem *p = &w->g->attention;

    w->fresh_tile =
        is_first_batch(&w->g->grad_query, attn_query_starts(p->packed), &p->batch, w->b)
            ? w->part->first_tile
            : w->end_tile;
}

/* Clears gradients of the queries of tiles before `end` that had no pass. */
static void
clear_tiles(backward_work *w, ptrdiff_t end)
{
    visit_queries(w, w->fresh_tile, end, CLEAR);
    w->fresh_tile = most(w->fresh_tile, end);
}

#endif
