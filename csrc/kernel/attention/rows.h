/* Rows of a task: where arrays have them, and the queries that they are. */
#ifndef ATTN_KERNEL_ATTENTION_ROWS_H
#define ATTN_KERNEL_ATTENTION_ROWS_H

#include "kernel/attention/task.h"
#include "kernel/operands/lanes.h"
#include "kernel/operands/prefetch.h"

/* Where a per-head, per-query array has row r of the task. */
static ptrdiff_t
row_offset(const work *w, const attn_array *array, ptrdiff_t r)
{
    ptrdiff_t row = w->task->first_row + r;
    ptrdiff_t n_queries = w->task->n_queries;
    return row / n_queries * array->head_stride + row % n_queries * array->row_stride;
}

static ptrdiff_t
tile_rows(const work *w, int tile)
{
    return least(w->task->n_rows - (ptrdiff_t)tile * WIDTH, WIDTH);
}

/* Vectors of a tile that hold rows; what lies beyond is never read. */
static int
tile_vectors(const work *w, int tile)
{
    return (int)((tile_rows(w, tile) + LANES - 1) / LANES);
}

/* The addresses of an array's rows from row r of the task on, as many as there are lanes or
 * rows left; returns how many. */
static ptrdiff_t
row_addresses(const work *w, const attn_array *array, const char *base, ptrdiff_t r,
              const char *rows[LANES])
{
    ptrdiff_t n = least(w->task->n_rows - r, LANES);

    for (ptrdiff_t i = 0; i < n; i++) {
        ONE_BY_ONE;
        rows[i] = base + row_offset(w, array, r + i);
    }
    return n;
}

/* Stores n_columns of a column of vectors into the rows from r on of a result. */
static void
store_result(work *w, const attn_array *array, char *base, ptrdiff_t r,
             const real *from, ptrdiff_t n_columns)
{
    char *rows[LANES] = {NULL};
    ptrdiff_t n = least(w->task->n_rows - r, LANES);

    for (ptrdiff_t i = 0; i < n; i++) {
        ONE_BY_ONE;
        rows[i] = base + row_offset(w, array, r + i);
    }
    store_lanes(array, rows, n, from, n_columns, w->rows);
}

static void
load_queries(work *w)
{
    const attn_problem *p = w->p;
    const attn_array *query = &p->query;
    ptrdiff_t n_rows = w->task->n_rows;
    ptrdiff_t used = (p->head_dim + TERMS - 1) / TERMS;
    bool lanes = !w->row_form || HAS_UNIT;
    real scale = (real)p->scale;

    for (ptrdiff_t r = 0; r < n_rows && lanes; r += LANES) {
        operand *tile = w->query + r / WIDTH * WIDTH * w->key_width + r % WIDTH;
        const char *rows[LANES] = {NULL};
        ptrdiff_t n = row_addresses(w, query, w->task->query, r, rows);
        load_lanes(query, rows, n, p->head_dim, w->rows, tile,
                   TERMS == 1 ? &scale : NULL);
        for (ptrdiff_t k = used; k < w->key_width; k++) {
            memset(tile + k * WIDTH, 0, LANES * sizeof *tile);
        }
    }
    for (ptrdiff_t r = 0; r < row_form_rows(n_rows) && !lanes; r++) {
        operand *to = w->query + r * w->key_width;
        memset(to, 0, (size_t)w->key_width * sizeof *to);
        if (r < n_rows) {
            stage_row(to, w->task->query + row_offset(w, query, r),
                      query->column_stride, p->head_dim, query->dtype);
            scale_row(to, w->key_width, scale);
        }
    }
}

/* What follows the task's queries: most likely the next task's. */
static prefetch
queries_prefetch(const work *w)
{
    const attn_array *query = &w->p->query;
    ptrdiff_t n_rows = w->task->n_rows;

    return prefetch_of(query, w->task->query + row_offset(w, query, n_rows),
                       w->p->head_dim, n_rows);
}

/* Are scores logits already but for w->scale, which must not be negative then? */
static bool
are_plain_scores(const work *w)
{
    return w->task->bias == NULL && !(w->p->softcap > 0) && w->scale > 0;
}

#endif
