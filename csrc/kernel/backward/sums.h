/* The three products that add to gradients: weights, or gradients of scores, with rows
 * in the lanes, times rows of an array. These factors are read as they lie in sums over
 * rows, and transposed in sums over keys. */
#ifndef ATTN_KERNEL_BACKWARD_SUMS_H
#define ATTN_KERNEL_BACKWARD_SUMS_H

#include "kernel/backward/masked.h"
#include "kernel/backward/products.h"

static void
add_gradients(backward_work *w, const gradient_sum *s)
{
    ptrdiff_t n_terms = s->by_key ? s->keys->n : s->n_rows;
    ptrdiff_t n_steps = operands_of(n_terms);

    for (ptrdiff_t d = 0; d < s->n_columns; d += SLAB_COLUMNS) {
        ptrdiff_t n = least(s->n_columns - d, SLAB_COLUMNS);
        matrix b = fetch_rows(s->array, s->from + d * s->array->column_stride, n_terms,
                              s->n_columns, n, round_up(n, LANES), w->rows.slab);
        tile_product m = {.base = {.c = s->to + d,
                                   .c_row = s->to_row,
                                   .a = {s->factors, LINE},
                                   .b = (const char *)b.at,
                                   .b_row = b.row * (ptrdiff_t)sizeof(operand),
                                   .n_rows = s->by_key ? s->n_rows : s->keys->n,
                                   .n_steps = n_steps},
                          .add = true};
        if (s->keys->masked && !all_finite(b, n_steps, n)) {
            add_seen_terms(w, s, &m.base, n);
        } else {
            multiply_any_columns(w, m, n, s->by_key);
        }
    }
}

/* Adds to the gradients of the block's keys (or values) the factors times the tile's
 * rows of an array, head by head. */
static void
add_to_keys(backward_work *w, const block *b, const span *keys, real *factors,
            const attn_array *rows, const attn_array *gradient, ptrdiff_t n_columns)
{
    uint16_t column[ATTN_BLOCK] = {0};
    gradient_rows to = key_sums_from(w, gradient, keys->first);

    for (ptrdiff_t r = 0, end; r < w->task.n_rows; r = end) {
        end = end_of_head(&w->task, r);
        bool odd = (end - r) % TERMS != 0;
        gradient_sum s = {.factors = factors_of_rows(factors, r),
                          .array = rows,
                          .from = query_row(w, rows, r),
                          .to = to.at,
                          .to_row = to.row,
                          .n_columns = n_columns,
                          .first_row = r,
                          .n_rows = end - r,
                          .keys = keys,
                          .first_key = keys->first - b->first};
        if (odd) {
            swap_lane(factors, keys->n, LINE, end, column);
        }
        add_gradients(w, &s);
        if (odd) {
            swap_lane(factors, keys->n, LINE, end, column);
        }
    }
}

/* Adds to the gradients of the tile's queries the factors times the block's keys. */
static void
add_to_queries(backward_work *w, const block *b, const span *keys)
{
    key_run run = keys_of(&w->rows, keys->first, keys->n);

    for (ptrdiff_t r = 0, end; r < w->task.n_rows; r = end) {
        end = end_of_head(&w->task, r);
        gradient_rows to = query_sums_from(w, r);
        gradient_sum s = {.factors = w->grad_pairs + r,
                          .by_key = true,
                          .array = run.array,
                          .from = run.at,
                          .to = to.at,
                          .to_row = to.row,
                          .n_columns = run.dim,
                          .first_row = r,
                          .n_rows = end - r,
                          .keys = keys,
                          .first_key = keys->first - b->first};
        add_gradients(w, &s);
    }
}

#endif
