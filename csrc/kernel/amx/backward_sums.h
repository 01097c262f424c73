/* Gradients on a matrix unit: the three products that add to them. */
#ifndef ATTN_KERNEL_AMX_BACKWARD_SUMS_H
#define ATTN_KERNEL_AMX_BACKWARD_SUMS_H

#include "kernel/amx/backward_products.h"
#include "kernel/backward/bands.h"
#include "kernel/backward/bias.h"

/* Adds to n_rows rows and n_columns columns of C, from row i and column d on, less than
 * UNIT_SQUARE of each, and writes nothing else of it. */
static NOINLINE void
add_to_part(const unit_product *whole, ptrdiff_t i, ptrdiff_t d, ptrdiff_t n_rows,
            ptrdiff_t n_columns)
{
    real sums[UNIT_SQUARE * UNIT_SQUARE] = {0};
    real *to = whole->c + i * whole->c_row + d;
    size_t bytes = (size_t)n_columns * sizeof(real);
    unit_product part = *whole;

    part.c = sums;
    part.c_row = UNIT_SQUARE;
    part.a += i / UNIT_ROWS * part.a_tile;
    part.b += d;
    part.n_rows = n_rows;
    part.n_vec = (n_columns + LANES - 1) / LANES;
    for (ptrdiff_t r = 0; r < n_rows; r++) {
        memcpy(sums + r * UNIT_SQUARE, to + r * whole->c_row, bytes);
    }
    multiply_on_unit(&part);
    for (ptrdiff_t r = 0; r < n_rows; r++) {
        memcpy(to + r * whole->c_row, sums + r * UNIT_SQUARE, bytes);
    }
}

/* C += A B, for n_columns columns of C. */
static void
add_product(const unit_product *m, ptrdiff_t n_columns)
{
    unit_product whole = *m;
    ptrdiff_t columns = n_columns / LANES * LANES;

    whole.n_rows = m->n_rows / UNIT_ROWS * UNIT_ROWS;
    whole.n_vec = columns / LANES;
    if (whole.n_rows > 0) {
        multiply_on_unit(&whole);
    }
    for (ptrdiff_t i = 0; i < whole.n_rows && columns < n_columns; i += UNIT_SQUARE) {
        add_to_part(m, i, columns, least(whole.n_rows - i, UNIT_SQUARE),
                    n_columns - columns);
    }
    for (ptrdiff_t d = 0; d < n_columns && whole.n_rows < m->n_rows; d += UNIT_SQUARE) {
        add_to_part(m, whole.n_rows, d, m->n_rows - whole.n_rows,
                    least(n_columns - d, UNIT_SQUARE));
    }
}

/* The same without rows of B that a key may not see, key by key: `keys` has their bits, from that of
 * row r on. */
static NOINLINE void
add_seen_rows(const unit_product *m, ptrdiff_t n_columns, const uint64_t *keys,
              ptrdiff_t r)
{
    operand seen[LINE / TERMS * UNIT_SQUARE];
    ptrdiff_t n_pairs = m->n_steps * UNIT_OPERANDS;

    for (ptrdiff_t d = 0; d < n_columns; d += UNIT_SQUARE) {
        ptrdiff_t n = least(n_columns - d, UNIT_SQUARE);
        unit_product one = *m;
        one.b = seen;
        one.b_row = UNIT_SQUARE;
        for (ptrdiff_t i = 0; i < m->n_rows; i++) {
            for (ptrdiff_t k = 0; k < n_pairs * UNIT_SQUARE; k++) {
                ptrdiff_t pair = k / UNIT_SQUARE, c = k % UNIT_SQUARE;
                operand x = c < round_up(n, LANES) ? m->b[pair * m->b_row + d + c] : 0;
                seen[k] = keep_terms(x, keys[i] >> (r + pair * TERMS));
            }
            /* A tile's first row is the key: the others that it has are computed for nothing. */
            one.a = m->a + i * m->a_row;
            one.c = m->c + i * m->c_row + d;
            add_to_part(&one, 0, 0, 1, n);
        }
    }
}

/* A band's factors of rows r .. end - 1, with zeros for other rows up to whole tiles: where they
 * are, or in the slab. */
static matrix
factors_of_band(backward_work *w, const band *of, operand *factors, ptrdiff_t r,
                ptrdiff_t end)
{
    const operand *from = factors_of_rows(factors, r);
    ptrdiff_t n = (end - r) * (ptrdiff_t)sizeof(uint16_t);
    ptrdiff_t width = round_up(end - r, UNIT_TERMS) / TERMS;

    if ((end - r) % UNIT_TERMS == 0) {
        return (matrix){from, FACTOR_LINE};
    }
    for (ptrdiff_t k = 0; k < of->keys.n; k++, from += FACTOR_LINE) {
        char *to = (char *)(w->rows.slab + k * width);
        memcpy(to, from, (size_t)n);
        memset(to + n, 0, (size_t)(width * (ptrdiff_t)sizeof(operand) - n));
    }
    return (matrix){w->rows.slab, width};
}

/* Adds to the gradients of a band's keys (or values) the factors times the tile's rows of an
 * array, head by head. */
static void
add_to_band(backward_work *w, const block *b, const band *of, operand *factors,
            const attn_array *rows, const attn_array *gradient, ptrdiff_t n_columns)
{
    const span *keys = &of->keys;
    gradient_rows to = key_sums_from(w, gradient, keys->first);

    for (ptrdiff_t r = of->row, end; r < of->end_row; r = end) {
        end = least(end_of_head(&w->task, r), of->end_row);
        matrix x = terms_of_rows(w, rows, r, end, n_columns);
        matrix a = factors_of_band(w, of, factors, r, end);
        unit_product m = {.c = to.at,
                          .c_row = to.row,
                          .a = a.at,
                          .a_row = a.row,
                          .a_tile = UNIT_ROWS * a.row,
                          .a_step = UNIT_OPERANDS,
                          .b = x.at,
                          .b_row = x.row,
                          .n_rows = keys->n,
                          .n_steps = (end - r + UNIT_TERMS - 1) / UNIT_TERMS,
                          .resume = true};
        if (keys->masked && !all_finite(x, x.row, 0, m.n_steps * UNIT_OPERANDS)) {
            add_seen_rows(&m, n_columns, w->rows.see_lanes + (keys->first - b->first),
                          r);
        } else {
            add_product(&m, n_columns);
        }
    }
}

/* Adds a product of transposed keys to one lane of the tile's queries, without keys that its row may
 * not see. */
static NOINLINE void
add_seen_keys(const backward_work *w, const unit_product *m, ptrdiff_t row,
              ptrdiff_t first, ptrdiff_t n)
{
    operand seen[ATTN_BLOCK / TERMS * UNIT_ROWS];
    unit_product one = *m;
    ptrdiff_t vector = row % WIDTH / LANES * LANES;

    one.a = seen;
    one.n_rows = UNIT_ROWS;
    one.n_vec = 1;
    one.b += vector;
    for (ptrdiff_t d = 0; d < m->n_rows; d += UNIT_ROWS) {
        const operand *from = m->a + d / UNIT_ROWS * m->a_tile;
        real sums[UNIT_ROWS * LANES], *to = m->c + d * m->c_row + row % WIDTH;
        for (ptrdiff_t i = 0; i < m->n_steps * UNIT_TILE; i++) {
            ptrdiff_t k = i / UNIT_TILE * UNIT_TERMS + i % UNIT_OPERANDS * TERMS;
            uint64_t bits = w->rows.see[row][(first + k) / 64] >> ((first + k) % 64);
            bits &= k + 1 < n ? 3 : k < n;
            seen[i] = keep_terms(from[i], bits);
        }
        one.c = sums;
        one.c_row = LANES;
        for (ptrdiff_t i = 0; i < UNIT_ROWS; i++) {
            v_store(sums + i * LANES, v_load(m->c + (d + i) * m->c_row + vector));
        }
        multiply_on_unit(&one);
        for (ptrdiff_t i = 0; i < UNIT_ROWS; i++) {
            to[i * m->c_row] = sums[i * LANES + row % LANES];
        }
    }
}

/* Adds to the sums of the tile's queries the gradients of scores times the keys of their span. */
static void
add_to_queries(backward_work *w, const block *b, const span *spans, const span *all)
{
    ptrdiff_t dim = w->g->attention.head_dim;
    const transposed_block *of;
    const operand *transposed = transpose_keys(w, b->first, &of);

    for (int t = 0; t < w->rows.n_tiles; t++) {
        const span *s = &spans[t];
        ptrdiff_t first = s->first - b->first;
        unit_product m = {.c = w->query_lanes + t * WIDTH,
                          .c_row = LINE,
                          .a = transposed + first / UNIT_TERMS * UNIT_TILE,
                          .a_row = UNIT_OPERANDS,
                          .a_tile = ATTN_BLOCK / UNIT_TERMS * UNIT_TILE,
                          .a_step = UNIT_TILE,
                          .b = w->grad_pairs + (s->first - all->first) / TERMS * LINE +
                               t * WIDTH,
                          .b_row = LINE,
                          .n_rows = dim,
                          .n_vec = tile_vectors(&w->rows, t),
                          .n_steps = (s->n + UNIT_TERMS - 1) / UNIT_TERMS,
                          .resume = true};
        bool sees_all =
            !s->masked && (s->n % UNIT_TERMS == 0 || s->first + s->n == of->end);
        if (s->n == 0) {
            continue;
        }
        if (of->finite || sees_all) {
            multiply_on_unit(&m);
            continue;
        }
        for (ptrdiff_t r = 0; r < tile_rows(&w->rows, t); r++) {
            add_seen_keys(w, &m, t * WIDTH + r, first, s->n);
        }
    }
}

static void
begin_head(backward_work *w)
{
    memset(w->transposed_blocks, 0, sizeof w->transposed_blocks);
}

static void
begin_tile(backward_work *w, ptrdiff_t tile)
{
    ptrdiff_t columns = round_up(w->g->attention.head_dim, UNIT_ROWS);

    (void)tile;
    memset(w->query_lanes, 0, (size_t)(columns * LINE) * sizeof(real));
}

/* Adds the sums of the tile's queries to their gradients. */
static void
end_tile(backward_work *w)
{
    ptrdiff_t dim = w->g->attention.head_dim;
    real *rows[LANES];

    for (ptrdiff_t i = 0; i < LANES; i++) {
        rows[i] = w->rows.staging + i * SLAB_COLUMNS;
    }
    for (ptrdiff_t r = 0; r < w->task.n_rows && w->part->query; r += LANES) {
        ptrdiff_t n_rows = least(w->task.n_rows - r, LANES);
        for (ptrdiff_t d = 0; d < dim; d += SLAB_COLUMNS) {
            ptrdiff_t n = least(dim - d, SLAB_COLUMNS);
            transpose_out(rows, n_rows, w->query_lanes + d * LINE + r, LINE, n);
            for (ptrdiff_t i = 0; i < n_rows; i++) {
                add_row(query_sums_from(w, r + i).at + d, rows[i], n);
            }
        }
    }
}

#endif
