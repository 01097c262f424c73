/* Tile form: weighted sums of values on a matrix unit, O[d][lane]. */
#ifndef ATTN_KERNEL_ATTENTION_UNIT_VALUES_H
#define ATTN_KERNEL_ATTENTION_UNIT_VALUES_H

#include "kernel/attention/tile_scores.h"
#include "kernel/attention/unit_stage.h"

#ifdef MATRIX_UNIT

/* Adds n_rows rows of sums to a tile's output, for the lanes whose bit is set: output * rescale +
 * sums, where there is any. */
static void
add_unit_sums(work *w, int tile, ptrdiff_t d, ptrdiff_t n_rows, const real *sums,
              uint64_t lanes)
{
    for (int v = 0; v < tile_vectors(w, tile); v++) {
        v_real keep = v_load(w->rescale + (ptrdiff_t)tile * WIDTH + v * LANES);
        v_mask wanted = v_mask_of(lanes >> (v * LANES));
        for (ptrdiff_t i = 0; i < n_rows; i++) {
            real *to = w->chunk.output[tile] + (d + i) * WIDTH + v * LANES;
            v_real sum = v_load(sums + i * WIDTH + v * LANES);
            v_real before = v_load(to);
            if (!w->chunk.empty[tile]) {
                sum = v_fma(before, keep, sum);
            }
            v_store(to, v_select(wanted, sum, before));
        }
    }
}

/* Of n tiles of values, UNIT_TERMS keys from `key` of the block on in each: 0 where a row may not
 * see them. */
static void
keep_seen_values(const work *w, ptrdiff_t row, ptrdiff_t key, const operand *from,
                 ptrdiff_t n, operand *to)
{
    for (ptrdiff_t i = 0; i < n * UNIT_TILE; i++) {
        ptrdiff_t k = key + i / UNIT_TILE * UNIT_TERMS + i % UNIT_OPERANDS * TERMS;
        ONE_BY_ONE;
        to[i] = keep_terms(from[i], w->see[row][k / 64] >> (k % 64));
    }
}

/* Adds the products of a tile's weights and values to the chunk's output. Where a value that
 * some row may not see is not finite, row by row. */
static void
add_values(work *w, const block *b, int tile, const span *s, const value_tiles *values,
           const prefetch next[2])
{
    ptrdiff_t offset = (s->first - values->first) / UNIT_TERMS;
    real sums[UNIT_SQUARE * WIDTH];
    operand seen[2 * ATTN_BLOCK / UNIT_TERMS * UNIT_TILE];
    unit_product m = {.c = sums,
                      .c_row = WIDTH,
                      .a_row = UNIT_OPERANDS,
                      .a_tile = values->n_steps * UNIT_TILE,
                      .a_step = UNIT_TILE,
                      .b = (const operand *)(const void *)scores_of(w, tile),
                      .b_row = WIDTH,
                      .n_vec = tile_vectors(w, tile),
                      .n_steps = (s->n + UNIT_TERMS - 1) / UNIT_TERMS,
                      .next = {next[0], next[1]}};

    for (ptrdiff_t c = 0; c < values->n_columns; c += UNIT_SQUARE) {
        const operand *from =
            w->slab + (c / UNIT_ROWS * values->n_steps + offset) * UNIT_TILE;
        ptrdiff_t d = values->d + c;
        m.n_rows = least(values->n_columns - c, UNIT_SQUARE);
        m.a = from;
        if (values->finite || !s->masked) {
            multiply_on_unit(&m);
            add_unit_sums(w, tile, d, m.n_rows, sums, ~UINT64_C(0));
            m.next[0].n_rows = m.next[1].n_rows = 0;
            continue;
        }
        m.a = seen;
        m.a_tile = m.n_steps * UNIT_TILE;
        for (ptrdiff_t r = 0; r < tile_rows(w, tile); r++) {
            for (ptrdiff_t j = 0; j < m.n_rows; j += UNIT_ROWS) {
                keep_seen_values(w, (ptrdiff_t)tile * WIDTH + r, s->first - b->first,
                                 from + j / UNIT_ROWS * values->n_steps * UNIT_TILE,
                                 m.n_steps, seen + j / UNIT_ROWS * m.a_tile);
            }
            multiply_on_unit(&m);
            add_unit_sums(w, tile, d, m.n_rows, sums, UINT64_C(1) << r);
        }
    }
}

#endif
#endif
