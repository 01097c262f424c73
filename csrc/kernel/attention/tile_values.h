/* Tile form: the weighted sums of a block's values, O[d][lane]. */
#ifndef ATTN_KERNEL_ATTENTION_TILE_VALUES_H
#define ATTN_KERNEL_ATTENTION_TILE_VALUES_H

#include "kernel/attention/hidden.h"
#include "kernel/attention/tile_scores.h"

/* Columns of values from d on, for the product of their block with a tile's weights. */
typedef struct {
    matrix at;
    ptrdiff_t first; /* key */
    bool finite;
    ptrdiff_t d;
    ptrdiff_t n_columns;
} value_slab;

/* output[d][lane] = output[d][lane] * rescale[lane], if `add`, plus the sum over the keys
 * that the tile's rows may see, one by one. */
static void
add_seen_values(work *w, int tile, const product *m, ptrdiff_t first_key)
{
    for (ptrdiff_t i = 0; i < tile_rows(w, tile); i++) {
        for (ptrdiff_t d = 0; d < m->n_rows; d++) {
            real *at = m->c + d * WIDTH + i;
            real sum = sum_seen_values(
                w, (ptrdiff_t)tile * WIDTH + i, first_key, m->n_steps,
                (const operand *)(const void *)m->b + i, WIDTH, m->a, d, 0);
            real lanes[LANES];
            v_store(lanes, v_fma(v_set1(*at), v_set1(m->keep[i]), v_set1(sum)));
            *at = m->add ? lanes[0] : sum;
        }
    }
}

/* Adds the products of a tile's weights and a slab of values to the chunk's output. */
static void
add_values(work *w, const block *b, int tile, const span *s, const value_slab *values,
           const prefetch next[2])
{
    ptrdiff_t offset = s->first - values->first;
    product m = {.c = w->chunk.output[tile] + values->d * WIDTH,
                 .c_row = WIDTH,
                 .a = {values->at.at + offset / TERMS * values->at.row, values->at.row},
                 .b = (const char *)scores_of(w, tile),
                 .b_row = WIDTH * sizeof(real),
                 .n_rows = values->n_columns,
                 .n_steps = (s->n + TERMS - 1) / TERMS,
                 .add = !w->chunk.empty[tile],
                 .keep = w->rescale + (ptrdiff_t)tile * WIDTH,
                 .next = {next[0], next[1]}};

    if (values->finite || !s->masked) {
        multiply_transposed(m, tile_vectors(w, tile));
    } else {
        add_seen_values(w, tile, &m, s->first - b->first);
    }
}

/* Dropout of a tile's weights, with a factor for those that stay. */
static void
drop_tile(work *w, const block *b, int tile, const span *s, real factor)
{
    if (w->p->dropout > 0) {
        drop(scores_of(w, tile), WIDTH, s->n, tile_vectors(w, tile),
             w->keep_lanes + (s->first - b->first), 1, (ptrdiff_t)tile * WIDTH, factor);
    }
}

#endif
