/* A tile of rows going backwards: its queries, the gradients of its output, and the numbers
 * that each row has. */
#ifndef ATTN_KERNEL_BACKWARD_TILE_H
#define ATTN_KERNEL_BACKWARD_TILE_H

#include "kernel/backward/task.h"

/* Makes w->task and w->rows those of a tile. */
static void
choose_tile(backward_work *w, ptrdiff_t tile)
{
    attn_set_up_tile(&w->g->attention, w->b, w->kv_head, tile, &w->task);
    w->rows.task = &w->task;
    w->rows.n_tiles = (int)tiles_of(w->task.n_rows);
    w->is_loaded = false;
    w->terms[0].are_there = w->terms[1].are_there = false;
}

/* Loads a number for each row from an array of the arithmetic's dtype; 0 for lanes
 * without a row. */
static void
load_numbers(const backward_work *w, const attn_array *array, real *to)
{
    memset(to, 0, ATTN_TASK_ROWS * sizeof(real));
    for (ptrdiff_t r = 0, end; r < w->task.n_rows && array->data != NULL; r = end) {
        const char *at = query_row(w, array, r);
        end = end_of_head(&w->task, r);
        for (ptrdiff_t i = r; i < end; i++, at += array->row_stride) {
            ONE_BY_ONE;
            memcpy(to + i, at, sizeof(real));
        }
    }
}

/* Rows of an array of (B, H, Lq, columns), LANES of them from row r of the tile on, as operands
 * to[column / TERMS][lane] with WIDTH of them from one to the next. */
static void
load_tile_lanes(backward_work *w, const attn_array *array, ptrdiff_t r,
                ptrdiff_t column, ptrdiff_t n_columns, operand *to)
{
    const char *rows[LANES] = {NULL};
    const char *base = group_base(w, array) + column * array->column_stride;
    ptrdiff_t n = row_addresses(&w->rows, array, base, r, rows);

    load_lanes(array, rows, n, n_columns, w->rows.staging, to, NULL);
}

/* The same as reals, whatever operands are, of up to SLAB_COLUMNS columns. */
static void
load_real_lanes(backward_work *w, const attn_array *array, ptrdiff_t r,
                ptrdiff_t column, ptrdiff_t n_columns, real *to)
{
    const char *rows[LANES] = {NULL};
    const char *base = group_base(w, array) + column * array->column_stride;
    ptrdiff_t n = row_addresses(&w->rows, array, base, r, rows);
    const real *staged[LANES] = {NULL};

    if (TERMS == 1) {
        load_tile_lanes(w, array, r, column, n_columns, (operand *)to);
        return;
    }
    for (ptrdiff_t i = 0; i < n; i++) {
        real *row = w->rows.staging + i * SLAB_COLUMNS;
        load_row(row, rows[i], array->column_stride, n_columns, array->dtype);
        staged[i] = row;
    }
    transpose_in(to, WIDTH, staged, n, n_columns, NULL);
}

/* Finds what the tile's rows may see of the part's keys from `first` up to `end`; false
 * where that is nothing. A row whose LSE is -inf has seen nothing. */
static bool
find_keys(backward_work *w, ptrdiff_t first, ptrdiff_t end)
{
    load_numbers(w, &w->g->attention.lse, w->lse);
    for (ptrdiff_t r = 0; r < w->task.n_rows; r++) {
        ONE_BY_ONE;
        if (w->lse[r] < -REAL_MAX) {
            w->task.see_from[r] = w->task.see_to[r] = 0;
            w->lse[r] = 0;
        }
    }
    attn_seen_keys(&w->task, &w->rows.from, &w->rows.to);
    w->rows.from = most(w->rows.from, first);
    w->rows.to = least(w->rows.to, end);
    return w->rows.from < w->rows.to;
}

/* The gradients of the output's rows from r on, a vector of them, as load_tile_lanes has
 * them. */
static operand *
grad_lanes(const backward_work *w, ptrdiff_t r)
{
    ptrdiff_t tile = r / WIDTH * WIDTH;
    return w->grad_output + tile * operands_of(w->g->attention.value_dim) + r % WIDTH;
}

static void
load_grad_output(backward_work *w)
{
    ptrdiff_t n_columns = w->g->attention.value_dim;
    ptrdiff_t used = (n_columns + TERMS - 1) / TERMS, width = operands_of(n_columns);

    for (ptrdiff_t r = 0; r < w->task.n_rows; r += LANES) {
        operand *to = grad_lanes(w, r);
        load_tile_lanes(w, &w->g->grad_output, r, 0, n_columns, to);
        for (ptrdiff_t k = used; k < width; k++) {
            memset(to + k * WIDTH, 0, LANES * sizeof *to);
        }
    }
}

/* Do vectors of rows that are read in place lie across cache lines, on a CPU whose loads would then
 * take longer than its multiply-adds? */
static bool
cross_lines(const attn_array *rows)
{
    uintptr_t places = (uintptr_t)rows->data | (uintptr_t)rows->row_stride;

    return TERMS == 1 && places % sizeof(v_real) != 0 &&
           attn_get_tuning(ATTN_TUNE_PAIR_TILES);
}

/* Operands behind each row that is copied for sums; without any, rows are read in place. Rows a
 * multiple of 512 bytes apart would meet in few sets of a cache of 32 KB, as CPUs with AVX2 have. */
static ptrdiff_t
row_gap(const attn_array *rows, ptrdiff_t width)
{
    const ptrdiff_t apart = 512, size = sizeof(operand);

    if (cross_lines(rows)) {
        return LANES;
    }
    return TERMS == 1 && sizeof(v_real) == 32 &&
                   (rows->row_stride % apart == 0 || width * size % apart == 0)
               ? 2 * LANES
               : 0;
}

/* Rows of the query, or of the output's gradient, from row r of the tile up to `end`, of one head,
 * as terms of sums: where they lie or, for all blocks of a tile with a single head, copied once. */
static ONE_COPY matrix
terms_of_rows(backward_work *w, const attn_array *rows, ptrdiff_t r, ptrdiff_t end,
              ptrdiff_t n_columns)
{
    kept_rows *kept = &w->terms[rows == &w->g->grad_output];
    bool one_head = end_of_head(&w->task, 0) == w->task.n_rows;
    ptrdiff_t first = one_head ? 0 : r, n = one_head ? w->task.n_rows : end - r;

    if (!kept->are_there) {
        ptrdiff_t width = round_up(n_columns, LANES);
        width += one_head ? row_gap(rows, width) : 0;
        kept->rows = fetch_rows(rows, query_row(w, rows, first), n, n_columns,
                                n_columns, width, kept->memory);
        kept->are_there = one_head && w->terms[0].memory != w->terms[1].memory;
        kept->are_finite = false;
        if (HAS_UNIT) { /* zeros up to whole instructions */
            ptrdiff_t used = (n + TERMS - 1) / TERMS;
            memset(kept->memory + used * width, 0,
                   (size_t)((operands_of(n) - used) * width) * sizeof(operand));
        }
    }
    return (matrix){kept->rows.at + (r - first) / TERMS * kept->rows.row,
                    kept->rows.row};
}

/* Where the bias has the tile's rows. */
static void
find_bias(backward_work *w)
{
    const attn_array *bias = &w->g->attention.bias;

    for (ptrdiff_t r = 0; r < w->task.n_rows && bias->data != NULL; r++) {
        ONE_BY_ONE;
        w->rows.bias_rows[r] = w->task.bias + row_offset(&w->rows, bias, r);
    }
}

#endif
