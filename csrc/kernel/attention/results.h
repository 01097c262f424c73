/* A task's results once all keys are seen: LSE, output and weights. A call over a part of the
 * keys stores its state, the total so far, which the next call loads. */
#ifndef ATTN_KERNEL_ATTENTION_RESULTS_H
#define ATTN_KERNEL_ATTENTION_RESULTS_H

#include "kernel/attention/row_form/row.h"
#include "kernel/attention/tile_form/tile.h"
#include "kernel/math/log.h"

enum { STATE_OUTPUT = 2 /* behind maximum and sum */ };

/* Has a call over earlier keys left a state? */
static bool
has_former_keys(const attn_problem *p)
{
    return p->partial != NULL && p->partial->before.data != NULL;
}

/* Where an array of states has the task's group. */
static char *
states_of(const task_rows *t, const attn_array *states)
{
    ptrdiff_t start =
        attn_packed_start(attn_query_starts(t->p->packed), t->task->batch);

    return attn_address(states, &t->p->batch, t->task->batch, t->task->first_head,
                        start);
}

/* Loads the state that earlier keys left into the total, which is clear. */
static void
load_state(work *w)
{
    const attn_array *states = &w->rows.p->partial->before;
    const char *base = states_of(&w->rows, states);
    const real *rows[LANES] = {NULL};

    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r += LANES) {
        ptrdiff_t n = least(w->rows.task->n_rows - r, LANES), tile = r / WIDTH;
        real *lanes = w->total.output[tile] + r % WIDTH;
        for (ptrdiff_t i = 0; i < n; i++) {
            const char *at = base + row_offset(&w->rows, states, r + i);
            const real *row = (const real *)(const void *)at;
            w->total.max[r + i] = row[0];
            w->total.sum[r + i] = row[1];
            rows[i] = row + STATE_OUTPUT;
        }
        transpose_in(lanes, WIDTH, rows, n, w->rows.p->value_dim, NULL);
        w->total.empty[tile] = false;
    }
}

/* Stores the total for later keys. Where no row has seen a key, the output is 0. */
static void
store_state(work *w)
{
    const attn_array *states = &w->rows.p->partial->after;
    char *base = states_of(&w->rows, states);

    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r++) {
        const real *lane = w->total.output[r / WIDTH] + r % WIDTH;
        real *row = (real *)(void *)(base + row_offset(&w->rows, states, r));
        bool none = w->total.empty[r / WIDTH];
        row[0] = w->total.max[r];
        row[1] = w->total.sum[r];
        for (ptrdiff_t d = 0; d < w->rows.p->value_dim; d++) {
            ONE_BY_ONE;
            row[STATE_OUTPUT + d] = none ? 0 : lane[d * WIDTH];
        }
    }
}

/* Takes the sinks into the total and turns sums into what output and weights are to be
 * multiplied by: output_factor for rows of output, total.sum for weights relative to
 * total.max. Writes the LSE, max + log(sum). Rows that saw nothing have sum 0. */
static void
finish_sums(work *w, real *output_factor)
{
    const attn_problem *p = w->rows.p;
    real sink[LANES], max[LANES], sum[LANES];

    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r += LANES) {
        ptrdiff_t n = least(w->rows.task->n_rows - r, LANES);
        v_mask seen_none = v_less(v_load(w->total.sum + r), v_set1((real)0.5));
        v_real factor = v_set1(1);
        v_real all = v_load(w->total.sum + r);
        if (w->rows.task->sinks != NULL) {
            for (ptrdiff_t i = 0; i < LANES; i++) {
                ptrdiff_t head = (w->rows.task->first_row + r + least(i, n - 1)) /
                                 w->rows.task->n_queries;
                const char *from = w->rows.task->sinks + head * p->sinks.head_stride;
                sink[i] = load_element(from, p->sinks.dtype);
            }
            factor = raise_max(w->total.max + r, v_load(sink));
            v_real top = finite_floor(v_load(w->total.max + r));
            all = v_fma(all, factor, exp_of(v_sub(v_load(sink), top)));
        }
        v_store(max, v_load(w->total.max + r));
        v_store(sum, all);
        v_real inverse = v_div(v_set1(1), all);
        inverse = v_select(seen_none, v_set1(0), inverse);
        v_store(w->total.sum + r, inverse);
        factor = v_mul(factor, inverse);
        if (p->dropout > 0) {
            factor = v_mul(factor, v_set1(kept_scale(&w->rows)));
        }
        v_store(output_factor + r, factor);
        v_store(w->total.max + r, finite_floor(v_load(max)));
        for (ptrdiff_t i = 0; i < n && w->rows.task->lse != NULL; i++) {
            real lse = sum[i] == 0 ? (real)-INFINITY
                                   : (real)((double)max[i] + log_of((double)sum[i]));
            lse = sum[i] != sum[i] ? (real)NAN : lse + 0;
            memcpy(w->rows.task->lse + row_offset(&w->rows, &p->lse, r + i), &lse,
                   sizeof lse);
        }
    }
}

static void
write_output(work *w, const real *factor)
{
    const attn_problem *p = w->rows.p;

    for (ptrdiff_t r = 0; r < w->rows.task->n_rows; r += LANES) {
        ptrdiff_t tile = r / WIDTH;
        real *lanes = w->total.output[tile] + r % WIDTH;
        v_real f = v_load(factor + r);
        v_real inverse = v_load(w->total.sum + r);
        uint64_t seen =
            v_bits_of(v_less(v_set1(0), inverse)) | v_bits_of(v_is_nan(inverse));
        for (ptrdiff_t d = 0; d < p->value_dim; d++) {
            v_real x = v_mul(v_load(lanes + d * WIDTH), f);
            x = v_select(v_mask_of(seen), quiet_nan_or(x), v_set1(0));
            v_store(lanes + d * WIDTH, v_add(x, v_set1(0))); /* -0 becomes 0 */
        }
        store_result(&w->rows, &p->output, w->rows.task->output, r, lanes,
                     p->value_dim);
    }
}

static void
write_weights(work *w, const attn_worker *worker)
{
    block b;

    for (ptrdiff_t first = w->rows.from / ATTN_BLOCK * ATTN_BLOCK; first < w->rows.to;
         first += ATTN_BLOCK) {
        if (attn_gives_up(worker)) {
            return;
        }
        if (!open_block(&w->rows, first, &b, false)) {
            continue;
        }
        begin_products();
        if (w->rows.row_form) {
            write_row_weights(w, &b);
        } else {
            write_tile_weights(w, &b);
        }
        end_products();
    }
}

/* Measures the weights of all blocks, and writes their statistics. */
static void
write_measures(work *w, const attn_worker *worker)
{
    row_statistics so_far;

    w->statistics = &so_far;
    clear_statistics(w);
    write_weights(w, worker);
    write_statistics(w);
    w->statistics = NULL;
}

/* Writes the results, once every chunk is in the total. */
static void
close_task(work *w, const attn_worker *worker)
{
    real output_factor[MAX_TILES * WIDTH];

    if (w->rows.p->partial != NULL && w->rows.p->partial->after.data != NULL) {
        store_state(w);
        return;
    }
    finish_sums(w, output_factor);
    write_output(w, output_factor);
    if (w->rows.p->statistics != NULL) {
        write_measures(w, worker);
    } else if (w->rows.task->weights != NULL) {
        write_weights(w, worker);
    }
}

#endif
