/* Tile form: a block of keys on a matrix unit, and the tiles of values that tasks share. */
#ifndef ATTN_KERNEL_AMX_ATTENTION_BLOCK_H
#define ATTN_KERNEL_AMX_ATTENTION_BLOCK_H

#include "kernel/amx/attention_beside.h"
#include "kernel/amx/attention_scores.h"
#include "kernel/amx/attention_tile_values.h"

/* Makes tiles of columns of the seen values from d on, in the slab. */
static value_tiles
stage_values(work *w, const span *seen, ptrdiff_t d)
{
    key_run run = values_of(&w->rows, seen->first, seen->n);
    value_tiles values = {.at = w->rows.slab,
                          .first = seen->first,
                          .d = d,
                          .n_columns = least(run.dim - d, SLAB_COLUMNS),
                          .n_steps = (seen->n + UNIT_TERMS - 1) / UNIT_TERMS};

    stage_value_tiles(&values, run);
    values.finite = !seen->masked || are_tiles_finite(&values);
    return values;
}

/* Makes tiles of all values of the block, or finds those of an earlier task of the head. Returns false
 * if they have no place, or some value is not finite, even one that the task does not see. */
static bool
keep_values(work *w, const block *b, value_tiles *values)
{
    const ptrdiff_t index = b->first / ATTN_BLOCK, dim = w->rows.p->value_dim;
    const ptrdiff_t size = round_up(dim, UNIT_ROWS) * ATTN_BLOCK / TERMS;

    if (!has_place(w, b->first, w->kept_value_blocks)) {
        return false;
    }
    const uint64_t bit = UINT64_C(1) << index;
    operand *at = w->kept_values + index * size;
    ptrdiff_t n = keys_to_keep(w, b->first);
    *values = (value_tiles){.at = at,
                            .first = b->first,
                            .n_columns = dim,
                            .n_steps = ATTN_BLOCK / UNIT_TERMS,
                            .finite = true};
    if ((w->kept.has_values & bit) == 0) {
        if (n <= ATTN_BLOCK - UNIT_TERMS) { /* tiles of no keys are 0 */
            memset(at, 0, (size_t)size * sizeof *at);
        }
        stage_value_tiles(values, values_of(&w->rows, b->first, n));
        w->kept.has_values |= bit;
        w->kept.not_finite |= are_tiles_finite(values) ? 0 : bit;
    }
    return (w->kept.not_finite & bit) == 0;
}

/* Tiles of the block's keys, one behind the other, as keep_values. Read where they lie, tiles wait
 * longer for the second-level cache, and most where an array does not begin with a cache line. */
static bool
keep_keys(work *w, const block *b, key_tiles *keys)
{
    const ptrdiff_t index = b->first / ATTN_BLOCK, width = w->rows.key_width;
    const ptrdiff_t n_steps = width / UNIT_OPERANDS;

    if (!has_place(w, b->first, w->kept_key_blocks)) {
        return false;
    }
    const uint64_t bit = UINT64_C(1) << index;
    operand *at = w->kept_keys + index * width * ATTN_BLOCK;
    *keys = (key_tiles){at, b->first, UNIT_OPERANDS, n_steps * UNIT_TILE, UNIT_TILE};
    if ((w->kept.has_keys & bit) == 0) {
        key_run run = keys_of(&w->rows, b->first, keys_to_keep(w, b->first));
        matrix rows = fetch_key_tiles(&run, 0, run.dim, w->rows.slab);
        for (ptrdiff_t i = 0; i < run.n; i++) {
            operand *to = at + i / UNIT_ROWS * keys->tile + i % UNIT_ROWS * keys->row;
            for (ptrdiff_t t = 0; t < n_steps; t++) {
                v_store_pairs(to + t * keys->step,
                              v_load_pairs(rows.at + i * rows.row + t * UNIT_OPERANDS));
            }
        }
        w->kept.has_keys |= bit;
    }
    return true;
}

/* Adds the products of all tiles' weights and the block's values to the chunk's output. */
static void
add_block(work *w, const block *b, const span *spans, const span *seen, prefetch *next)
{
    ptrdiff_t dim = w->rows.p->value_dim;
    value_tiles values = {.n_columns = 0};

    for (ptrdiff_t d = 0; d < dim; d += values.n_columns) {
        if (d > 0 || !keep_values(w, b, &values)) {
            values = stage_values(w, seen, d);
        }
        for (int t = 0; t < w->rows.n_tiles; t++) {
            if (spans[t].n > 0) {
                add_values(w, b, t, &spans[t], &values, next);
                next[0].n_rows = next[1].n_rows = 0;
            }
        }
    }
}

_Static_assert(MAX_TILES == 2, "attend_to_tiles");

/* The whole block, for its tiles. Products with one tile are computed beside weights of the
 * other. */
static void
attend_to_tiles(work *w, block *b, const span *spans, const key_tiles *keys,
                const value_tiles *values, prefetch *beside, prefetch *next)
{
    const ptrdiff_t dim = w->rows.p->head_dim;
    const int first = spans[0].n > 0 ? 0 : 1;
    const prefetch nothing[2] = {{.n_rows = 0}};
    bool two = first == 0 && w->rows.n_tiles == 2 && spans[1].n > 0;
    bool finite = values->finite || !spans[0].masked;
    _Alignas(CACHE_LINE) real sums[UNIT_SQUARE * WIDTH];
    unit_product m = score_product(w, first, &spans[first], keys, 0, dim, beside);

    multiply_on_unit(&m);
    m.n_rows = 0;
    if (two) {
        m = score_product(w, 1, &spans[1], keys, 0, dim, nothing);
    }
    weigh_beside(w, b, first, &spans[first], &m);
    if (two) {
        m = value_product(w, 0, &spans[0], values, sums, next);
        m.n_rows = finite ? m.n_rows : 0;
        weigh_beside(w, b, 1, &spans[1], &m);
    }
    if (!two || !finite) {
        add_values(w, b, first, &spans[first], values, next);
    }
    if (two) {
        add_values(w, b, 1, &spans[1], values, nothing);
    }
}

/* Attends to the whole block, if there is room for its keys and values at once; else does nothing
 * and returns false. */
static bool
attend_tile_by_tile(work *w, block *b, const span *spans, const span *seen,
                    prefetch *next)
{
    key_run run = keys_of(&w->rows, seen->first, seen->n);
    prefetch beside[2] = {next_prefetch(w, b->end, false),
                          prefetch_beside_scores(w, b)};
    value_tiles values;
    key_tiles keys;

    if (w->rows.p->value_dim > SLAB_COLUMNS || seen->n == 0) {
        return false;
    }
    if (!keep_keys(w, b, &keys)) {
        if (!are_key_tiles(&run)) {
            return false;
        }
        keys =
            tiles_of_rows(fetch_key_tiles(&run, 0, run.dim, w->rows.slab), seen->first);
    }
    if (!keep_values(w, b, &values)) {
        values = stage_values(w, seen, 0);
    }
    attend_to_tiles(w, b, spans, &keys, &values, beside, next);
    return true;
}

#endif
