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
fetch_key_tiles(const key_run *keys, ptrdiff_t column, ptrdiff_t n_columns,
                operand *slab)
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
        operand *to = slab + j * width;
        stage_row(to, from, key->column_stride, n_columns, key->dtype);
        memset(to + used, 0, (size_t)(width - used) * sizeof *to);
    }
    return (matrix){slab, width};
}

/* Row form: products of queries with the block's keys from k on, KEY_GROUP or as many as there
 * are, in whole tiles; rows are lanes. */
static void
multiply_key_group(work *w, const block *b, ptrdiff_t k, real *sums)
{
    ptrdiff_t first = b->first + k, n = least(b->end - first, KEY_GROUP);
    key_run run = keys_of(&w->rows, first, n), next = {.at = NULL};
    matrix keys = fetch_key_tiles(&run, 0, run.dim, w->rows.slab);

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
}

enum { STRIP_KEYS = UNIT_STRIP * UNIT_ROWS };

/* Adds the products of queries with STRIP_KEYS keys, of UNIT_TERMS columns from an address on or,
 * if `two`, of twice as many. The same of the keys behind them is prefetched, if that is wanted. */
static INLINE void
multiply_strip_columns(const char *at, ptrdiff_t row, const operand *query,
                       const bool two, bool prefetches)
{
    const ptrdiff_t size = sizeof(operand);

    u_load_strip((const char *)query, WIDTH * size, UNIT_OPERANDS * WIDTH * size, two);
    UNROLLED for (int i = 0; i < UNIT_STRIP; i++, at += UNIT_ROWS * row)
    {
        const prefetch next = {.at = at + STRIP_KEYS * row,
                               .row = row,
                               .bytes = (two ? 2 : 1) * CACHE_LINE,
                               .n_rows = prefetches ? UNIT_ROWS : 0};
        u_multiply_strip(i, at, row, two);
        prefetch_near(&next);
    }
}

/* The products of queries with STRIP_KEYS keys, [key][column]. For one or two rows two cache lines
 * of a key are read together, and the keys behind are prefetched: memory is the limit, and read
 * fastest in order. */
static void
multiply_key_strip(const work *w, const key_run *keys, ptrdiff_t columns, real *sums)
{
    const ptrdiff_t row = keys->array->row_stride, width = w->rows.key_width;
    const operand *query = w->rows.query;
    const char *at = keys->at;
    bool few = w->rows.task->n_rows <= STREAM_ROWS, prefetches = few && w->reads_ahead;

    u_clear_strip();
    for (ptrdiff_t t = 0, taken; t < width; t += taken) {
        if (few && t + 2 * UNIT_OPERANDS <= width) {
            taken = 2 * UNIT_OPERANDS;
            multiply_strip_columns(at, row, query, true, prefetches);
        } else {
            taken = UNIT_OPERANDS;
            multiply_strip_columns(at, row, query, false, prefetches);
        }
        at += taken * (ptrdiff_t)sizeof(operand);
        query += taken * WIDTH;
    }
    u_store_strip(sums, columns * (ptrdiff_t)sizeof *sums);
}

/* Transposes the products of n keys: rows become lines. */
static void
transpose_scores(const work *w, const real *sums, ptrdiff_t n, real *scores)
{
    v_real a[LANES];

    for (ptrdiff_t k = 0; k < n; k += LANES, sums += LANES * LANES) {
        if (w->rows.task->n_rows <= 4) {
            u_transpose_four(sums, a);
        } else {
            UNROLLED for (int i = 0; i < LANES; i++)
            {
                a[i] = v_load(sums + i * LANES);
            }
            v_transpose(a);
        }
        for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
            v_store(scores + r * ATTN_BLOCK + k, a[r]);
        }
    }
}

/* Row form: products of queries with the block's keys. Those of a single row are its scores; others
 * are transposed once all are there, because what a tile has just stored is slow to be read. */
static void
multiply_keys(work *w, const block *b)
{
    ptrdiff_t n_keys = b->end - b->first, k = 0;
    key_run keys = keys_of(&w->rows, b->first, n_keys);
    bool in_strips = keys.dim > 0 && are_key_tiles(&keys);
    bool single = in_strips && n_keys % STRIP_KEYS == 0 && w->rows.task->n_rows == 1;
    real sums[ATTN_BLOCK * LANES];

    take_columns(&w->unit_columns, single ? 1 : UNIT_LANES);
    for (; in_strips && k + STRIP_KEYS <= n_keys; k += STRIP_KEYS) {
        multiply_key_strip(w, &keys, single ? 1 : LANES,
                           single ? w->scores + k : sums + k * LANES);
        keys = rest_of(keys, STRIP_KEYS);
        for (ptrdiff_t i = 0; i < STRIP_KEYS && w->rows.task->n_rows > STREAM_ROWS;
             i += KEY_GROUP) {
            prefetch next = look_ahead(w, b, (k + i) / KEY_GROUP);
            prefetch_rows(&next, 0, next.n_rows);
        }
    }
    for (; k < n_keys; k += KEY_GROUP) {
        multiply_key_group(w, b, k, sums + k * LANES);
    }
    if (!single) {
        transpose_scores(w, sums, n_keys, w->scores);
    }
}

/* Keys from `first` on, as the unit reads them. */
typedef struct {
    const operand *at;
    ptrdiff_t first;
    ptrdiff_t row;  /* operands from row to row, */
    ptrdiff_t tile; /* and from UNIT_ROWS rows to the next ones, */
    ptrdiff_t step; /* and from UNIT_TERMS columns */
} key_tiles;

static key_tiles
tiles_of_rows(matrix keys, ptrdiff_t first)
{
    return (key_tiles){keys.at, first, keys.row, UNIT_ROWS * keys.row, UNIT_OPERANDS};
}

/* Tile form: the products of a tile's queries and its span of keys, of n_columns columns from d
 * on. */
static NOINLINE unit_product
score_product(const work *w, int tile, const span *s, const key_tiles *keys,
              ptrdiff_t d, ptrdiff_t n_columns, const prefetch next[2])
{
    return (unit_product){
        .c = scores_of(w, tile),
        .c_row = WIDTH,
        .a = keys->at + (s->first - keys->first) / UNIT_ROWS * keys->tile,
        .a_row = keys->row,
        .a_tile = keys->tile,
        .a_step = keys->step,
        .b = w->rows.query + (tile * w->rows.key_width + d / TERMS) * WIDTH,
        .b_row = WIDTH,
        .n_rows = s->n,
        .n_vec = tile_vectors(&w->rows, tile),
        .n_steps = (n_columns + UNIT_TERMS - 1) / UNIT_TERMS,
        .resume = d > 0,
        .next = {next[0], next[1]}};
}

/* The products of queries and keys of each span; `seen` is all of them. */
static void
multiply_scores(work *w, const block *b, const span *spans, const span *seen)
{
    key_run run = keys_of(&w->rows, seen->first, seen->n);
    prefetch next[2] = {next_prefetch(w, b->end, false), prefetch_beside_scores(w, b)};
    ptrdiff_t most_columns = are_key_tiles(&run) ? run.dim : ATTN_DIM_BLOCK;
    ptrdiff_t d = 0;

    do { /* D may be 0 */
        ptrdiff_t n_columns = least(run.dim - d, most_columns);
        key_tiles keys = tiles_of_rows(
            fetch_key_tiles(&run, d, n_columns, w->rows.slab), seen->first);
        for (int t = 0; t < w->rows.n_tiles; t++) {
            if (spans[t].n > 0) {
                unit_product m =
                    score_product(w, t, &spans[t], &keys, d, n_columns, next);
                multiply_on_unit(&m);
                next[0].n_rows = next[1].n_rows = 0;
            }
        }
        d += most_columns;
    } while (d < run.dim);
}

#endif
