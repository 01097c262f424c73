/* Tile form: the products of a block, on a matrix unit: scores S[key][lane], and weighted sums
 * of values, O[d][lane]. */
#ifndef ATTN_KERNEL_ATTENTION_UNIT_TILES_H
#define ATTN_KERNEL_ATTENTION_UNIT_TILES_H

#include "kernel/attention/tile_scores.h"
#include "kernel/attention/unit_keys.h"
#include "kernel/attention/unit_values.h"

#ifdef MATRIX_UNIT

/* The products of queries and keys of each span; `seen` is all of them. */
static void
multiply_scores(work *w, const block *b, const span *spans, const span *seen)
{
    const attn_problem *p = w->p;
    prefetch next[2] = {next_prefetch(w, b->end, false),
                        block_prefetch(w, b->first, true)};
    ptrdiff_t most_columns = are_key_tiles(w, seen->n) ? p->head_dim : ATTN_DIM_BLOCK;
    ptrdiff_t d = 0;

    do { /* D may be 0 */
        ptrdiff_t n_columns = least(p->head_dim - d, most_columns);
        matrix keys = fetch_key_tiles(w, seen->first, seen->n, d, n_columns);
        for (int t = 0; t < w->n_tiles; t++) {
            if (spans[t].n == 0) {
                continue;
            }
            multiply_on_unit(&(unit_product){
                .c = scores_of(w, t),
                .c_row = WIDTH,
                .a = keys.at + (spans[t].first - seen->first) * keys.row,
                .a_row = keys.row,
                .a_tile = UNIT_ROWS * keys.row,
                .a_step = UNIT_OPERANDS,
                .b = w->query + (t * w->key_width + d / TERMS) * WIDTH,
                .b_row = WIDTH,
                .n_rows = spans[t].n,
                .n_vec = tile_vectors(w, t),
                .n_steps = (n_columns + UNIT_TERMS - 1) / UNIT_TERMS,
                .resume = d > 0,
                .next = {next[0], next[1]}});
            next[0].n_rows = next[1].n_rows = 0;
        }
        d += most_columns;
    } while (d < p->head_dim);
}

/* Adds the products of all tiles' weights and the block's values to the chunk's output. */
static void
add_block(work *w, const block *b, const span *spans, const span *seen, prefetch *next)
{
    const attn_problem *p = w->p;

    for (ptrdiff_t d = 0; d < p->value_dim; d += SLAB_COLUMNS) {
        value_tiles values = {.first = seen->first,
                              .d = d,
                              .n_columns = least(p->value_dim - d, SLAB_COLUMNS),
                              .n_steps = (seen->n + UNIT_TERMS - 1) / UNIT_TERMS};
        stage_value_tiles(w, &values, seen->n);
        values.finite = !seen->masked || are_tiles_finite(w, &values);
        for (int t = 0; t < w->n_tiles; t++) {
            if (spans[t].n > 0) {
                add_values(w, b, t, &spans[t], &values, next);
                next[0].n_rows = next[1].n_rows = 0;
            }
        }
    }
}

#endif
#endif
