/* Gradients on a matrix unit: what it multiplies, and keys by rows in the lanes. Rows of queries and
 * of the output's gradients are read as pairs of rows; keys are transposed once for a chunk's
 * tiles of rows, so that the gradients of scores are multiplied as they lie. */
#ifndef ATTN_KERNEL_AMX_BACKWARD_PRODUCTS_H
#define ATTN_KERNEL_AMX_BACKWARD_PRODUCTS_H

#include "kernel/amx/attention_scores.h"
#include "kernel/amx/attention_tile_values.h"
#include "kernel/backward/prefetch.h"
#include "kernel/backward/tile.h"

/* to[key][lane] = a run of keys, or values, from key `first` on, times the same columns of lanes,
 * which are (tiles, columns / TERMS, WIDTH); for each tile those of its span. */
static void
multiply_by_lanes(backward_work *w, key_run keys, ptrdiff_t first, const span *spans,
                  const operand *lanes, real *to)
{
    ptrdiff_t most_columns = are_key_tiles(&keys) ? keys.dim : ATTN_DIM_BLOCK;
    ptrdiff_t width = operands_of(keys.dim), d = 0;

    do { /* there may be no column */
        ptrdiff_t n = least(keys.dim - d, most_columns);
        matrix a = fetch_key_tiles(&keys, d, n, w->rows.slab);
        for (int t = 0; t < w->rows.n_tiles; t++) {
            ptrdiff_t key = spans[t].first - first;
            if (spans[t].n == 0) {
                continue;
            }
            unit_product m = {.c = to + key * LINE + t * WIDTH,
                              .c_row = LINE,
                              .a = a.at + key * a.row,
                              .a_row = a.row,
                              .a_tile = UNIT_ROWS * a.row,
                              .a_step = UNIT_OPERANDS,
                              .b = lanes + (t * width + d / TERMS) * WIDTH,
                              .b_row = WIDTH,
                              .n_rows = spans[t].n,
                              .n_vec = tile_vectors(&w->rows, t),
                              .n_steps = (n + UNIT_TERMS - 1) / UNIT_TERMS,
                              .resume = d > 0};
            take_prefetches(w, m.next);
            multiply_on_unit(&m);
        }
        d += most_columns;
    } while (d < keys.dim);
}

/* The block of keys at `first`, transposed. */
static const operand *
transpose_keys(backward_work *w, ptrdiff_t first, const transposed_block **of)
{
    const attn_problem *p = &w->g->attention;
    ptrdiff_t slot = first / ATTN_BLOCK % w->n_transposed;
    ptrdiff_t end = least(first + ATTN_BLOCK, attn_n_keys(p, w->b));
    value_tiles tiles = {.n_columns = p->head_dim, .n_steps = ATTN_BLOCK / UNIT_TERMS};
    ptrdiff_t n_rows = round_up(p->head_dim, UNIT_ROWS);
    operand *transposed = w->transposed + slot * n_rows * ATTN_BLOCK / TERMS,
            *to = transposed;
    transposed_block *now = &w->transposed_blocks[slot];

    *of = now;
    if (now->first == first && now->end == end) {
        return transposed;
    }
    *now = (transposed_block){first, end, true};
    for (ptrdiff_t key = first; key < end; key += UNIT_TERMS, to += UNIT_TILE) {
        key_run run = keys_of(&w->rows, key, least(end - key, UNIT_TERMS));
        stage_some_tiles(&tiles, &run, to);
    }
    for (ptrdiff_t d = 0; d < n_rows; d += UNIT_ROWS) {
        matrix rows = {transposed + d * ATTN_BLOCK / TERMS, UNIT_OPERANDS};
        ptrdiff_t n = (end - first + UNIT_TERMS - 1) / UNIT_TERMS * UNIT_ROWS;
        now->finite = now->finite && all_finite(rows, UNIT_OPERANDS, 0, n);
    }
    return transposed;
}

#endif
