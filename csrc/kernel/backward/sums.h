/* The three products that add to gradients: weights, or gradients of scores, with rows
 * in the lanes, times rows of an array. These factors are read as they lie in sums over
 * rows, and transposed in sums over keys. */
#ifndef ATTN_KERNEL_BACKWARD_SUMS_H
#define ATTN_KERNEL_BACKWARD_SUMS_H

#include "kernel/backward/bands.h"
#include "kernel/backward/masked.h"
#include "kernel/backward/products.h"

/* Columns d .. d + n - 1 of the rows that a sum multiplies. On CPUs that multiply two tiles at once,
 * vectors that lie across cache lines would take more loads than there is time for: such rows are
 * copied. */
static matrix
fetch_terms(backward_work *w, const gradient_sum *s, ptrdiff_t d, ptrdiff_t n,
            ptrdiff_t n_terms)
{
    const attn_array *array = s->array;
    const char *from = s->from + d * array->column_stride;
    operand *slab = w->rows.slab;
    uintptr_t places = (uintptr_t)from | (uintptr_t)array->row_stride;

    if (!PAIRS_TILES || places % sizeof(v_real) == 0 || n % LANES != 0 ||
        !is_plain(array, n) || !attn_get_tuning(ATTN_TUNE_PAIR_TILES)) {
        return fetch_rows(array, from, n_terms, s->n_columns, n, round_up(n, LANES),
                          slab);
    }
    for (ptrdiff_t j = 0; j < n_terms; j++, from += array->row_stride) {
        for (ptrdiff_t c = 0; c < n; c += LANES) {
            const operand *row = (const operand *)(const void *)from;
            memcpy(slab + j * n + c, row + c, sizeof(v_real));
        }
    }
    return (matrix){slab, n};
}

static void
add_gradients(backward_work *w, const gradient_sum *s)
{
    ptrdiff_t n_terms = s->by_key ? s->keys->n : s->n_rows;
    ptrdiff_t n_steps = operands_of(n_terms), first = 0, end = n_steps;

    if (s->by_key) { /* the other terms are seen */
        first = (s->keys->hidden - s->keys->first) / TERMS;
        end = operands_of(s->keys->end_hidden - s->keys->first);
    }
    for (ptrdiff_t d = 0; d < s->n_columns; d += SLAB_COLUMNS) {
        ptrdiff_t n = least(s->n_columns - d, SLAB_COLUMNS);
        matrix b = fetch_terms(w, s, d, n, n_terms);
        tile_product m = {.base = {.c = s->to + d,
                                   .c_row = s->to_row,
                                   .a = {s->factors, s->by_key ? LINE : FACTOR_LINE},
                                   .b = (const char *)b.at,
                                   .b_row = b.row * (ptrdiff_t)sizeof(operand),
                                   .n_rows = s->by_key ? s->n_rows : s->keys->n,
                                   .n_steps = n_steps},
                          .add = true,
                          .next = {take_prefetch(w), take_prefetch(w)}};
        if (s->keys->masked && !all_finite(b, n, first, end)) {
            add_seen_terms(w, s, &m.base, n);
        } else {
            multiply_any_columns(w, m, n, s->by_key);
        }
    }
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
            swap_lane(factors, keys->n, FACTOR_LINE, end, column);
        }
        add_gradients(w, &s);
        if (odd) {
            swap_lane(factors, keys->n, FACTOR_LINE, end, column);
        }
    }
}

/* Adds to the gradients of the tile's queries the factors times the keys of their span. */
static void
add_to_queries(backward_work *w, const block *b, const span *spans, const span *all)
{
    for (ptrdiff_t r = 0, end; r < w->task.n_rows; r = end) {
        span keys = spans[r / WIDTH];
        end = end_of_head(&w->task, r);
        for (ptrdiff_t at = round_up(r + 1, WIDTH); at < end; at += WIDTH) {
            const span *other = &spans[at / WIDTH];
            if (other->first != keys.first || other->n != keys.n) {
                end = at;
                break;
            }
            keys.masked = keys.masked || other->masked;
            keys.hidden = least(keys.hidden, other->hidden);
            keys.end_hidden = most(keys.end_hidden, other->end_hidden);
        }
        if (keys.n == 0) {
            continue;
        }
        key_run run = keys_of(&w->rows, keys.first, keys.n);
        gradient_rows to = query_sums_from(w, r);
        gradient_sum s = {.factors = w->grad_pairs +
                                     (keys.first - all->first) / TERMS * LINE + r,
                          .by_key = true,
                          .array = run.array,
                          .from = run.at,
                          .to = to.at,
                          .to_row = to.row,
                          .n_columns = run.dim,
                          .first_row = r,
                          .n_rows = end - r,
                          .keys = &keys,
                          .first_key = keys.first - b->first};
        add_gradients(w, &s);
    }
}

/* What a matrix unit begins with each head and ends with each tile: nothing here. */
static void
begin_head(backward_work *w)
{
    (void)w;
}

static void
end_tile(backward_work *w)
{
    (void)w;
}

#endif
