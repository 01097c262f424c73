/* The entry points of attention.
 *
 * Tile form: rows are lanes. A tile is WIDTH rows of the task; its scores are
 * S[key][lane], its output O[d][lane]. Row form, for the few rows of decoding: keys are
 * the lanes of S[row][key], head dimension those of O[row][d]. Both take the same
 * arithmetic steps in the same order for a row, so they give the same bits. */
#ifndef ATTN_KERNEL_ATTENTION_ATTEND_H
#define ATTN_KERNEL_ATTENTION_ATTEND_H

#include "core/tiers.h"
#include "core/tuning.h"
#include "kernel/attention/chunks.h"
#include "kernel/attention/results.h"

/* Is it worth while to read keys in order before they are read out of order? Widening
 * halves for several rows takes so long that prefetches are better. One or two rows of float32 and
 * float16 gain from the third-level cache, too, others from memory alone. */
static bool
repays_bursts(const attn_problem *p, const attn_task *task)
{
    attn_dtype dtype = p->key.dtype;
    bool is_few = task->n_rows <= STREAM_ROWS;

    if (dtype == ATTN_I8 || (dtype == ATTN_F16 && !is_few) ||
        !fits_bursts(&p->key, p->head_dim, LANES)) {
        return false;
    }
    bool gains_near = is_few && (dtype == ATTN_F16 || dtype == ATTN_F32);
    return (gains_near || key_bytes(p) > (double)FAR_BYTES) &&
           attn_get_tuning(ATTN_TUNE_READ_BURSTS);
}

/* Sets which keys and values the task prefetches, if they are far: tasks of a head run from the
 * last rows to the first, and find what the ones before them have read, unless that is too much.
 * Where a head has a single block, its first task prefetches the next head's, because the last has
 * too little time. */
static void
choose_prefetches(work *w, const attn_task *task, ptrdiff_t group_rows)
{
    const attn_problem *p = w->rows.p;
    bool begins_head = task->first_row + task->n_rows == group_rows, far = is_far(p);
    bool is_short = p->n_keys <= ATTN_BLOCK, is_only = group_rows <= ATTN_TASK_ROWS;
    bool reads_first = begins_head || has_far_heads(p);

    w->reads_ahead = far && reads_first && (is_only || !is_short);
    w->ends_head = far && (is_short ? begins_head : task->first_row == 0);
    w->reads_bursts = w->reads_ahead && is_only && repays_bursts(p, task);
    w->keeps_lines = attn_get_tuning(ATTN_TUNE_READ_SOON) ||
                     (key_bytes(p) > (double)PARTLY_FAR_BYTES &&
                      attn_get_tuning(ATTN_TUNE_READ_FAR_SOON));
    w->reads_once =
        w->reads_ahead && is_only && !w->reads_bursts &&
        (w->keeps_lines || attn_get_tuning(ATTN_TUNE_READ_ONCE) ||
         (p->key.dtype == ATTN_F16 && attn_get_tuning(ATTN_TUNE_READ_HALVES_ONCE)));
}

/* Makes the task ready to attend in a worker's workspace, where its `work` comes first. */
static work *
open_task(const attn_problem *p, const attn_task *task, const attn_worker *worker)
{
    work *w = worker->workspace;
    ptrdiff_t group_rows = p->group * task->n_queries;

    w->rows.p = p;
    w->rows.bytes = worker->tier->bytes;
    w->rows.byte_unit = worker->tier->byte_unit;
    w->rows.task = task;
    w->rows.n_tiles = (int)tiles_of(task->n_rows);
    choose_prefetches(w, task, group_rows);
    w->values_prefetched = -1;
    attn_seen_keys(task, &w->rows.from, &w->rows.to);
    lay_out_attention(p, group_rows, worker->workspace, w);
    load_queries(&w->rows);
    for (ptrdiff_t r = 0; r < task->n_rows && task->bias != NULL; r++) {
        ONE_BY_ONE;
        w->rows.bias_rows[r] = task->bias + row_offset(&w->rows, &p->bias, r);
    }
    clear_partial(&w->total, w->rows.n_tiles);
    if (has_former_keys(p)) {
        load_state(w);
    }
    return w;
}

static void
run_attention(const attn_problem *p, const attn_task *task, const attn_worker *worker)
{
    work *w = open_task(p, task, worker);
    ptrdiff_t first = w->rows.from / ATTN_CHUNK * ATTN_CHUNK;

    if (first < w->rows.to && w->rows.to <= first + ATTN_CHUNK && !has_former_keys(p)) {
        /* nothing to combine */
        attend_to_chunk(w, first, worker);
        w->total = w->chunk;
        first = w->rows.to;
    }
    for (; first < w->rows.to; first += ATTN_CHUNK) {
        if (attn_gives_up(worker)) {
            return; /* the call has failed: nobody looks at the results */
        }
        attend_to_chunk(w, first, worker);
        combine_chunk(w);
    }
    close_task(w, worker);
}

static void
run_attention_chunk(const attn_problem *p, const attn_task *task, ptrdiff_t first_key,
                    void *to, const attn_worker *worker)
{
    work *w = open_task(p, task, worker);
    arena partial_memory = {to, 0};

    take_partial(&partial_memory, w->rows.n_tiles, p->value_dim, &w->chunk);
    attend_to_chunk(w, first_key, worker);
}

static void
begin_combine(const attn_problem *p, const attn_task *task, const attn_worker *worker)
{
    open_task(p, task, worker);
}

static void
combine(void *from, const attn_worker *worker)
{
    work *w = worker->workspace;
    arena partial_memory = {from, 0};

    take_partial(&partial_memory, w->rows.n_tiles, w->rows.p->value_dim, &w->chunk);
    combine_chunk(w);
}

/* The chunk's memory, which combine() has changed, is laid out again. */
static void
end_combine(const attn_worker *worker)
{
    work *w = worker->workspace;

    lay_out_attention(w->rows.p, w->rows.p->group * w->rows.task->n_queries,
                      worker->workspace, w);
    close_task(w, worker);
}

#endif
