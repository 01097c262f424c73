/* Tile form by vectors: scores S[key][lane], and weighted sums of values, O[d][lane]. */
#ifndef ATTN_KERNEL_ATTENTION_TILE_FORM_PRODUCTS_H
#define ATTN_KERNEL_ATTENTION_TILE_FORM_PRODUCTS_H

#include "kernel/attention/operands.h"
#include "kernel/attention/tile_form/scores.h"
#include "kernel/gemm/tiles.h"

/* The parts of two prefetches that belong to columns d .. d + some - 1 of `dim`. */
static NOINLINE void
slice_next(const prefetch next[2], ptrdiff_t d, ptrdiff_t some, ptrdiff_t dim,
           prefetch due[2])
{
    due[0] = prefetch_slice(&next[0], d, some, most(dim, 1));
    due[1] = prefetch_slice(&next[1], d, some, most(dim, 1));
}

/* Are the products of tiles t and t + 1 computed at once? The second may see more keys. */
static bool
are_paired(const task_rows *rows, const span *spans, int t)
{
    const span *s = &spans[t];

    return PAIRS_TILES && t + 1 < rows->n_tiles &&
           tile_vectors(rows, t + 1) == TILE_VECTORS && s[0].first == s[1].first &&
           s[0].n <= s[1].n && s[0].narrow == s[0].first + s[0].n &&
           s[1].narrow == s[1].first + s[1].n && attn_get_tuning(ATTN_TUNE_PAIR_TILES);
}

/* The products of the keys of a span, or of two that are paired, with a tile's queries. Keys at
 * their end may be seen only by the vectors behind the first, or by the second tile. */
static ONE_COPY void
multiply_span(tile_product m, const span *s, int n_vec, bool paired)
{
    ptrdiff_t n = paired ? s[0].n : s->narrow - s->first;
    ptrdiff_t more = s[paired].n - n;

    m.base.n_rows = n;
    multiply(m, n_vec << paired);
    if ((PAIRS_TILES || NARROWS) && more > 0) {
        m.base.c += n * m.base.c_row + (paired ? m.c_tile : LANES);
        m.base.a.at += n * m.base.a.row;
        m.base.b += paired ? m.b_tile : LANES * (ptrdiff_t)sizeof(operand);
        m.base.n_rows = more;
        m.next[0].n_rows = m.next[1].n_rows = 0;
        multiply(m, paired ? n_vec : n_vec - 1);
    }
}

/* The products of queries and keys of each span; `seen` is all of them. */
static void
multiply_scores(work *w, const block *b, const span *spans, const span *seen)
{
    const attn_problem *p = w->rows.p;
    key_run run = keys_of(&w->rows, seen->first, seen->n);
    const operand *kept = keep_rows(w, b->first, false);
    prefetch next[2] = {next_prefetch(w, b->end, false), prefetch_beside_scores(w, b)};
    prefetch due[2]; /* of it */
    ptrdiff_t d = 0;

    if (next[0].n_rows == 0) {
        next[0] = bias_prefetch(&w->rows, b->end);
    }
    do { /* D may be 0 */
        ptrdiff_t n_columns = least(p->head_dim - d, ATTN_DIM_BLOCK);
        matrix keys =
            kept == NULL
                ? fetch_keys(w, &run, d, n_columns)
                : (matrix){kept + (seen->first - b->first) * run.dim + d, run.dim};
        slice_next(next, d, ATTN_DIM_BLOCK, p->head_dim, due);
        for (int t = 0; t < w->rows.n_tiles; t++) {
            const operand *query =
                w->rows.query + (t * w->rows.key_width + d / TERMS) * WIDTH;
            if (spans[t].n == 0) {
                continue;
            }
            bool paired = are_paired(&w->rows, spans, t);
            multiply_span(
                (tile_product){
                    .base = {.c = scores_of(w, t),
                             .c_row = WIDTH,
                             .a = {keys.at + (spans[t].first - seen->first) * keys.row,
                                   keys.row},
                             .b = (const char *)query,
                             .b_row = WIDTH * sizeof(operand),
                             .n_steps = (n_columns + TERMS - 1) / TERMS},
                    .add = d > 0,
                    .next = {due[0], due[1]},
                    .b_tile = w->rows.key_width * WIDTH * (ptrdiff_t)sizeof(operand),
                    .c_tile = scores_of(w, 1) - scores_of(w, 0)},
                &spans[t], tile_vectors(&w->rows, t), paired);
            due[0].n_rows = due[1].n_rows = 0;
            t += paired;
        }
        d += ATTN_DIM_BLOCK;
    } while (d < p->head_dim);
}

/* Columns of values from d on, for the product of their block with a tile's weights. */
typedef struct {
    matrix at;
    ptrdiff_t first, d, n_columns; /* the first key, the first column */
    bool finite;
} value_slab;

/* output[d][lane] = output[d][lane] * rescale[lane], if `add`, plus the sum over the keys
 * that the tile's rows may see, one by one. */
static void
add_seen_values(work *w, int tile, const tile_product *m, ptrdiff_t first_key)
{
    const product *p = &m->base;

    for (ptrdiff_t i = 0; i < tile_rows(&w->rows, tile); i++) {
        for (ptrdiff_t d = 0; d < p->n_rows; d++) {
            real *at = p->c + d * WIDTH + i;
            real sum = sum_seen_values(
                w, (ptrdiff_t)tile * WIDTH + i, first_key, p->n_steps,
                (const operand *)(const void *)p->b + i, WIDTH, p->a, d, 0);
            real lanes[LANES];
            v_store(lanes, v_fma(v_set1(*at), v_set1(m->keep[i]), v_set1(sum)));
            *at = m->add ? lanes[0] : sum;
        }
    }
}

/* Adds the products of a tile's weights and a slab of values to the chunk's output; of two tiles,
 * if they are paired. */
static void
add_values(work *w, const block *b, int tile, const span *s, const value_slab *values,
           const prefetch next[2], bool paired)
{
    real *const *output = w->chunk.output + tile;
    ptrdiff_t offset = s->first - values->first;
    tile_product m = {
        .base = {.c = output[0] + values->d * WIDTH,
                 .c_row = WIDTH,
                 .a = {values->at.at + offset / TERMS * values->at.row, values->at.row},
                 .b = (const char *)scores_of(w, tile),
                 .b_row = WIDTH * sizeof(real),
                 .n_rows = values->n_columns,
                 .n_steps = (s->n + TERMS - 1) / TERMS},
        .add = !w->chunk.empty[tile],
        .keep = w->rescale + (ptrdiff_t)tile * WIDTH,
        .next = {next[0], next[1]},
        .b_tile = (scores_of(w, 1) - scores_of(w, 0)) * (ptrdiff_t)sizeof(real),
        .c_tile = paired ? output[1] - output[0] : 0,
        .more_steps = paired ? s[1].n - s[0].n : 0};

    int n_vec = tile_vectors(&w->rows, tile) << paired;

    if (NARROWS && (values->finite || !s->masked) && s->narrow < s->first + s->n) {
        tile_product one = m;
        one.base.n_steps = (s->narrow - s->first) / TERMS;
        multiply_transposed(one, 1);
        m.base.c += LANES;
        m.base.b += LANES * sizeof(real);
        m.keep += LANES;
        m.next[0].n_rows = m.next[1].n_rows = 0;
        multiply_transposed(m, n_vec - 1);
    } else if (values->finite || !s->masked) {
        multiply_transposed(m, n_vec);
    } else {
        add_seen_values(w, tile, &m, s->first - b->first);
    }
}

/* Adds the products of all tiles' weights and the block's values to the chunk's output. */
static void
add_block(work *w, const block *b, const span *spans, const span *seen, prefetch *next)
{
    key_run run = values_of(&w->rows, seen->first, seen->n);
    ptrdiff_t dim = run.dim;
    const operand *kept = keep_rows(w, b->first, true);
    bool whole =
        kept != NULL || (TERMS == 1 && reads_in_place(run.array, dim, AS_OPERANDS));
    ptrdiff_t width = whole ? dim : SLAB_COLUMNS;
    prefetch due[2];

    for (ptrdiff_t d = 0; d < dim; d += width) {
        ptrdiff_t n_columns = least(dim - d, width);
        value_slab values = {.first = seen->first, .d = d, .n_columns = n_columns};
        values.at = kept == NULL ? fetch_values(w, &run, d, n_columns, n_columns)
                                 : (matrix){kept + (seen->first - b->first) * dim, dim};
        values.finite =
            all_finite(values.at, n_columns, (seen->hidden - seen->first) / TERMS,
                       (seen->end_hidden - seen->first + TERMS - 1) / TERMS);
        slice_next(next, d, width, dim, due);
        for (int t = 0; t < w->rows.n_tiles; t++) {
            if (spans[t].n > 0) {
                bool paired =
                    are_paired(&w->rows, spans, t) &&
                    w->chunk.empty[t] == w->chunk.empty[t + 1] &&
                    (values.finite || !(spans[t].masked || spans[t + 1].masked));
                add_values(w, b, t, &spans[t], &values, due, paired);
                due[0].n_rows = due[1].n_rows = 0;
                t += paired;
            }
        }
    }
}

/* From products to weights. */
static void
weigh_tile(work *w, block *b, int tile, const span *s)
{
    exponentiate_tile(w, b, tile, s);
}

/* Only a matrix unit attends to a block tile by tile. By vectors, all tiles are multiplied by a slab
 * of keys while it is in the cache. */
static bool
attend_tile_by_tile(work *w, block *b, const span *spans, const span *seen,
                    prefetch *next)
{
    (void)w, (void)b, (void)spans, (void)seen, (void)next;
    return false;
}

#endif
