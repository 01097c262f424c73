/* Tile form: a block of keys on a matrix unit, and the tiles of values that tasks share. */
#ifndef ATTN_KERNEL_AMX_ATTENTION_BLOCK_H
#define ATTN_KERNEL_AMX_ATTENTION_BLOCK_H

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

/* Makes tiles of all values of the block in the panel, or finds those of an earlier task of the
 * head. Returns false where there is no place, where no other task needs them, and where some of
 * them, which the task may not even see, are not finite. */
static bool
keep_values(work *w, const block *b, value_tiles *values)
{
    const attn_problem *p = w->rows.p;
    const attn_task *task = w->rows.task;
    ptrdiff_t index = b->first / ATTN_BLOCK, n_steps = ATTN_BLOCK / UNIT_TERMS;
    ptrdiff_t n_tiles = round_up(p->value_dim, UNIT_ROWS) / UNIT_ROWS * n_steps;
    ptrdiff_t n = least((ptrdiff_t)task->kv_length - b->first, ATTN_BLOCK);

    if (index >= w->panel_blocks || p->group * task->n_queries <= p->task_rows) {
        return false;
    }
    if (w->panel.value != task->value || w->panel.batch != task->batch) {
        w->panel = (value_panel){.value = task->value, .batch = task->batch};
    }
    *values = (value_tiles){.at = w->panel_tiles + index * n_tiles * UNIT_TILE,
                            .first = b->first,
                            .n_columns = p->value_dim,
                            .n_steps = n_steps,
                            .finite = true};
    if ((w->panel.staged >> index & 1) == 0) {
        if (n <= ATTN_BLOCK - UNIT_TERMS) { /* tiles of no keys are 0 */
            memset(values->at, 0, (size_t)(n_tiles * UNIT_TILE) * sizeof(operand));
        }
        stage_value_tiles(values, values_of(&w->rows, b->first, n));
        w->panel.staged |= UINT64_C(1) << index;
        w->panel.odd |= (uint64_t)!are_tiles_finite(values) << index;
    }
    return (w->panel.odd >> index & 1) == 0;
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

/* The whole block, a tile after the other, so that its scores stay in the first-level cache:
 * where keys are read in place, and tiles of values are there at once. */
static bool
attend_in_turn(work *w, block *b, const span *spans, const span *seen, prefetch *next)
{
    key_run run = keys_of(&w->rows, seen->first, seen->n);
    prefetch beside[2] = {next_prefetch(w, b->end, false),
                          prefetch_beside_scores(w, b)};
    value_tiles values;

    if (!are_key_tiles(&run) || w->rows.p->value_dim > SLAB_COLUMNS) {
        return false;
    }
    matrix keys = fetch_key_tiles(&run, 0, run.dim, w->rows.slab);
    if (!keep_values(w, b, &values)) {
        values = stage_values(w, seen, 0);
    }
    w->in_turn = true;
    for (int t = 0; t < w->rows.n_tiles; t++) {
        if (spans[t].n > 0) {
            multiply_tile_scores(w, t, &spans[t], keys, seen->first, 0, run.dim,
                                 beside);
            exponentiate_tile(w, b, t, &spans[t]);
            add_values(w, b, t, &spans[t], &values, next);
            next[0].n_rows = next[1].n_rows = 0;
            beside[0].n_rows = beside[1].n_rows = 0;
        }
    }
    w->in_turn = false;
    return true;
}

#endif
