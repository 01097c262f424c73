/* Scores on a matrix unit: S[row][key] for row form, S[key][lane] for tile form. */
#ifndef ATTN_KERNEL_AMX_ATTENTION_SCORES_H
#define ATTN_KERNEL_AMX_ATTENTION_SCORES_H

#include "kernel/amx/product.h"
#include "kernel/attention/row_form/prefetch.h"
#include "kernel/attention/tile_form/scores.h"

/* Can the unit read tiles of these keys where they lie? */
static bool
are_key_tiles(const key_run *keys)
{
    return keys->n % UNIT_ROWS == 0 && keys->dim % UNIT_TERMS == 0 &&
           reads_in_place(keys->array, keys->dim, AS_OPERANDS);
}

/* Columns from `column` on, n_columns of them, of a run of keys, in rows of whole tiles: where
 * they lie, or brought into the slab, with zeros behind them. */
static matrix
fetch_key_tiles(work *w, const key_run *keys, ptrdiff_t column, ptrdiff_t n_columns)
{
    const attn_array *key = keys->array;
    const char *from = keys->at + column * key->column_stride;
    ptrdiff_t used = (n_columns + TERMS - 1) / TERMS;
    ptrdiff_t width = round_up(used, UNIT_OPERANDS);

    if (are_key_tiles(keys)) {
        return (matrix){(const operand *)(const void *)from,
                        key->row_stride / (ptrdiff_t)sizeof(operand)};
    }
    for (ptrdiff_t j = 0; j < keys->n; j++, from += key->row_stride) {
        operand *to = w->rows.slab + j * width;
        stage_row(to, from, key->column_stride, n_columns, key->dtype);
        memset(to + used, 0, (size_t)(width - used) * sizeof *to);
    }
    return (matrix){w->rows.slab, width};
}

/* Row form: products of queries with the block's keys from k on, KEY_GROUP or as many as there
 * are. The unit's sums have rows in the lanes; they are transposed. */
static void
score_group(work *w, const block *b, ptrdiff_t k)
{
    ptrdiff_t first = b->first + k, n = least(b->end - first, KEY_GROUP);
    key_run run = keys_of(&w->rows, first, n), next = {.at = NULL};
    matrix keys = fetch_key_tiles(w, &run, 0, run.dim);
    real sums[KEY_GROUP * LANES];
    v_real a[LANES];

    if (are_key_tiles(&run)) {
        next = next_in_stream(w, b, first);
    }
    if (next.at != NULL) {
        touch(next.at, next.n * next.array->row_stride / CACHE_LINE, touch_form_of(w),
              STREAM_ROWS);
    }
    multiply_on_unit(&(unit_product){.c = sums,
                                     .c_row = LANES,
                                     .a = keys.at,
                                     .a_row = keys.row,
                                     .a_tile = UNIT_ROWS * keys.row,
                                     .a_step = UNIT_OPERANDS,
                                     .b = w->rows.query,
                                     .b_row = WIDTH,
                                     .n_rows = n,
                                     .n_vec = 1,
                                     .n_steps = w->rows.key_width / UNIT_OPERANDS,
                                     .next = {look_ahead(w, b, k / KEY_GROUP)}});
    for (ptrdiff_t lane = 0; lane < n; lane += LANES) {
        if (w->rows.task->n_rows <= 4) {
            u_turn_four(sums + lane * LANES, a);
        } else {
            UNROLLED for (int i = 0; i < LANES; i++)
            {
                a[i] = v_load(sums + (lane + i) * LANES);
            }
            v_transpose(a);
        }
        for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
            v_store(w->scores + r * ATTN_BLOCK + k + lane, a[r]);
        }
    }
}

/* Tile form: the products of queries and keys of each span; `seen` is all of them. */
static void
multiply_scores(work *w, const block *b, const span *spans, const span *seen)
{
    key_run run = keys_of(&w->rows, seen->first, seen->n);
    prefetch next[2] = {next_prefetch(w, b->end, false), prefetch_beside_scores(w, b)};
    ptrdiff_t most_columns = are_key_tiles(&run) ? run.dim : ATTN_DIM_BLOCK;
    ptrdiff_t d = 0;

    do { /* D may be 0 */
        ptrdiff_t n_columns = least(run.dim - d, most_columns);
        matrix keys = fetch_key_tiles(w, &run, d, n_columns);
        for (int t = 0; t < w->rows.n_tiles; t++) {
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
                .b = w->rows.query + (t * w->rows.key_width + d / TERMS) * WIDTH,
                .b_row = WIDTH,
                .n_rows = spans[t].n,
                .n_vec = tile_vectors(&w->rows, t),
                .n_steps = (n_columns + UNIT_TERMS - 1) / UNIT_TERMS,
                .resume = d > 0,
                .next = {next[0], next[1]}});
            next[0].n_rows = next[1].n_rows = 0;
        }
        d += most_columns;
    } while (d < run.dim);
}

#endif
