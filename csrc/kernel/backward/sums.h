/* The three products that add to gradients. Sums over rows multiply the factors of weights, or of
 * gradients of scores, with rows of the tile: keys are rows of the result. Sums over keys have
 * these factors, and the result, in the lanes. */
#ifndef ATTN_KERNEL_BACKWARD_SUMS_H
#define ATTN_KERNEL_BACKWARD_SUMS_H

#include "kernel/backward/bands.h"
#include "kernel/backward/masked.h"
#include "kernel/backward/products.h"
#include "kernel/backward/tile.h"

/* Are terms of n rows finite? Those of all rows that are kept are looked at once. */
static bool
are_terms_finite(backward_work *w, const attn_array *rows, matrix terms, ptrdiff_t n,
                 ptrdiff_t n_columns)
{
    kept_rows *kept = &w->terms[rows == &w->g->grad_output];
    bool finite = kept->are_finite || all_finite(terms, n_columns, 0, operands_of(n));

    kept->are_finite =
        finite && kept->are_there && (kept->are_finite || n == w->task.n_rows);
    return finite;
}

/* Adds to the gradients of a band's keys (or values) the factors times the tile's rows of an
 * array, head by head. */
static void
add_to_band(backward_work *w, const block *b, const band *of, operand *factors,
            const attn_array *rows, const attn_array *gradient, ptrdiff_t n_columns)
{
    uint16_t column[ATTN_BLOCK] = {0};
    const span *keys = &of->keys;
    gradient_rows to = key_sums_from(w, gradient, keys->first);

    for (ptrdiff_t r = of->row, end; r < of->end_row; r = end) {
        end = least(end_of_head(&w->task, r), of->end_row);
        bool odd = (end - r) % TERMS != 0;
        matrix x = terms_of_rows(w, rows, r, end, n_columns);
        const operand *a = factors_of_rows(factors, r);
        if (odd) {
            swap_lane(factors, keys->n, FACTOR_LINE, end, column);
        }
        if (keys->masked && !are_terms_finite(w, rows, x, end - r, n_columns)) {
            add_seen_terms(w, &(gradient_sum){.factors = a,
                                              .factor_row = FACTOR_LINE,
                                              .factor_step = 1,
                                              .terms = x,
                                              .to = to.at,
                                              .to_row = to.row,
                                              .to_column = 1,
                                              .n_sums = keys->n,
                                              .n_terms = end - r,
                                              .n_columns = n_columns,
                                              .first_key = keys->first - b->first,
                                              .first_row = r});
        } else {
            add_columns_of_product(
                w,
                (tile_product){.base = {.c = to.at,
                                        .c_row = to.row,
                                        .a = {a, FACTOR_LINE},
                                        .b = (const char *)x.at,
                                        .b_row = x.row * (ptrdiff_t)sizeof(operand),
                                        .n_rows = keys->n,
                                        .n_steps = operands_of(end - r)},
                               .add = true},
                n_columns);
        }
        if (odd) {
            swap_lane(factors, keys->n, FACTOR_LINE, end, column);
        }
    }
}

/* Moves the sums of the tile's queries into the lanes, where keys are added, or out. */
static NOINLINE void
move_query_sums(backward_work *w, bool in)
{
    ptrdiff_t dim = w->g->attention.head_dim;
    real *rows[LANES] = {NULL};

    for (ptrdiff_t r = 0; r < w->task.n_rows && w->part->query; r += LANES) {
        ptrdiff_t n = least(w->task.n_rows - r, LANES);
        real *lanes = w->query_lanes + r;
        for (ptrdiff_t i = 0, end; i < n; i = end) {
            gradient_rows sums = query_sums_from(w, r + i);
            end = least(end_of_head(&w->task, r + i) - r, n);
            for (ptrdiff_t k = i; k < end; k++, sums.at += sums.row) {
                ONE_BY_ONE;
                rows[k] = sums.at;
            }
        }
        if (in) {
            transpose_in(lanes, LINE, (const real *const *)rows, n, dim, NULL);
        } else {
            transpose_out(rows, n, lanes, LINE, dim);
        }
    }
}

static void
begin_tile(backward_work *w, ptrdiff_t tile)
{
    if (tile < w->fresh_tile) {
        move_query_sums(w, true);
        return;
    }
    memset(w->query_lanes, 0, (size_t)(w->g->attention.head_dim * LINE) * sizeof(real));
    w->fresh_tile = tile + 1;
}

static void
end_tile(backward_work *w)
{
    move_query_sums(w, false);
}

/* Does the tile see all that its sum over columns of these keys multiplies, or is that finite? */
static bool
is_sum_whole(const span *s, matrix keys, ptrdiff_t first, ptrdiff_t n_columns)
{
    return !s->masked || all_finite(keys, n_columns, (s->hidden - first) / TERMS,
                                    operands_of(s->end_hidden - first));
}

/* Adds to columns d .. d + n - 1 of the tile's queries the factors times the keys of their spans. */
static void
add_to_query_columns(backward_work *w, const block *b, const span *spans,
                     const span *all, matrix keys, ptrdiff_t d, ptrdiff_t n)
{
    for (int t = 0; t < w->rows.n_tiles; t++) {
        const span *s = &spans[t];
        ptrdiff_t first = (s->first - all->first) / TERMS;
        const operand *a = keys.at + first * keys.row;
        const operand *factors = w->grad_pairs + first * LINE + t * WIDTH;
        real *to = w->query_lanes + d * LINE + t * WIDTH;
        bool whole = is_sum_whole(s, keys, all->first, n);
        bool paired = are_paired(&w->rows, spans, t) && whole &&
                      is_sum_whole(s + 1, keys, all->first, n);

        if (s[paired].n == 0) {
            continue;
        }
        if (whole) {
            tile_product m = {.base = {.c = to,
                                       .c_row = LINE,
                                       .a = {a, keys.row},
                                       .b = (const char *)factors,
                                       .b_row = LINE * sizeof(operand),
                                       .n_rows = n,
                                       .n_steps = operands_of(s->n)},
                              .add = true,
                              .b_tile = WIDTH * sizeof(operand),
                              .c_tile = WIDTH,
                              .more_steps = paired ? s[1].n - s->n : 0};
            take_prefetches(w, m.next);
            multiply_transposed(m, tile_vectors(&w->rows, t) << paired);
        } else {
            add_seen_terms(w, &(gradient_sum){.by_key = true,
                                              .factors = factors,
                                              .factor_row = 1,
                                              .factor_step = LINE,
                                              .terms = {a, keys.row},
                                              .to = to,
                                              .to_row = 1,
                                              .to_column = LINE,
                                              .n_sums = tile_rows(&w->rows, t),
                                              .n_terms = s->n,
                                              .n_columns = n,
                                              .first_key = s->first - b->first,
                                              .first_row = t * WIDTH});
        }
        t += paired;
    }
}

static void
add_to_queries(backward_work *w, const block *b, const span *spans, const span *all)
{
    key_run run = keys_of(&w->rows, all->first, all->n);

    for (ptrdiff_t d = 0; d < run.dim; d += SLAB_COLUMNS) {
        ptrdiff_t n = least(run.dim - d, SLAB_COLUMNS);
        matrix keys = fetch_rows(run.array, run.at + d * run.array->column_stride,
                                 run.n, run.dim, n, n, w->rows.slab);
        add_to_query_columns(w, b, spans, all, keys, d, n);
    }
}

/* What a matrix unit begins with each head: nothing here. */
static void
begin_head(backward_work *w)
{
    (void)w;
}

#endif
