/* Chunks of keys: each is attended to on its own, then combined with those before it. */
#ifndef ATTN_KERNEL_ATTENTION_CHUNKS_H
#define ATTN_KERNEL_ATTENTION_CHUNKS_H

#include "kernel/attention/row_form/row.h"
#include "kernel/attention/tile_form/tile.h"

/* Makes the partial that of rows that have seen no key. */
static void
clear_partial(partial *s, int n_tiles)
{
    for (int t = 0; t < n_tiles; t++) {
        s->empty[t] = true;
        for (int i = 0; i < WIDTH; i++) {
            ONE_BY_ONE;
            s->max[t * WIDTH + i] = (real)-INFINITY;
            s->sum[t * WIDTH + i] = 0;
        }
    }
}

/* Adds the chunk's partial of a tile to the total. Source of the formula: Dao et al.,
 * FlashAttention, 2022, section 3.1. */
static void
combine_tile(work *w, int tile)
{
    real *total = w->total.output[tile];
    real *chunk = w->chunk.output[tile];
    int n_vec = tile_vectors(&w->rows, tile);

    if (w->chunk.empty[tile]) {
        return;
    }
    for (int v = 0; v < n_vec; v++) {
        ptrdiff_t lane = (ptrdiff_t)tile * WIDTH + v * LANES;
        v_real chunk_max = v_load(w->chunk.max + lane);
        v_real old = raise_max(w->total.max + lane, chunk_max);
        v_real max = finite_floor(v_load(w->total.max + lane));
        v_real new = exp_of(v_sub(chunk_max, max));
        v_real sum = v_mul(v_load(w->total.sum + lane), old);
        v_store(w->total.sum + lane, v_fma(v_load(w->chunk.sum + lane), new, sum));
        if (w->total.empty[tile]) {
            continue;
        }
        for (ptrdiff_t d = 0; d < w->rows.p->value_dim; d++) {
            real *at = total + d * WIDTH + v * LANES;
            v_real x = v_load(chunk + d * WIDTH + v * LANES);
            v_store(at, v_fma(x, new, v_mul(v_load(at), old)));
        }
    }
    if (w->total.empty[tile]) { /* 0 * old + chunk * 1 is the chunk */
        memcpy(total, chunk, (size_t)(w->rows.p->value_dim * WIDTH) * sizeof(real));
        w->total.empty[tile] = false;
    }
}

static void
combine_chunk(work *w)
{
    for (int t = 0; t < w->rows.n_tiles; t++) {
        combine_tile(w, t);
    }
}

/* Row form: all keys first .. end - 1 of a chunk. */
static void
attend_rows_to_chunk(work *w, ptrdiff_t first, ptrdiff_t end)
{
    block b;

    first = most(first, w->rows.from / ATTN_BLOCK * ATTN_BLOCK);
    w->unit_columns = 0;
    if (w->reads_bursts || (HAS_UNIT && w->rows.task->n_rows == 1)) {
        multiply_chunk(w, first, end);
    }
    for (; first < end; first += ATTN_BLOCK) {
        if (open_block(&w->rows, first, &b, false)) {
            point_at_scores(w, first);
            attend_rows(w, &b);
        }
    }
    end_products();
    w->has_scores = false;
    w->scores = w->chunk_scores;
    if (w->reads_bursts) {
        prefetch_early(next_prefetch(w, end, false).at);
    }
    rows_to_tile(w);
}

/* Attends to the keys of the chunk that begins at `first`. */
static void
attend_to_chunk(work *w, ptrdiff_t first, const attn_worker *worker)
{
    ptrdiff_t end = least(first + ATTN_CHUNK, w->rows.to);
    block b;

    clear_partial(&w->chunk, w->rows.n_tiles);
    if (w->rows.row_form) {
        if (!attn_gives_up(worker)) {
            attend_rows_to_chunk(w, first, end);
        }
        return;
    }
    if (attn_gives_up(worker) || attend_byte_chunk(w, first, end)) {
        return;
    }
    for (; first < end; first += ATTN_BLOCK) {
        if (first + ATTN_BLOCK > w->rows.from && !attn_gives_up(worker) &&
            open_block(&w->rows, first, &b, true)) {
            begin_products();
            attend_tiles(w, &b);
            end_products();
        }
    }
}

#endif
