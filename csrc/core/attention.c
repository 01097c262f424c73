/* The driver of attention: splits a call into tasks; where they are too few for the threads,
 * each into chunks of keys. Validates nothing: what comes here is valid. */
#include "core/attention.h"

#include "core/arrangement.h"
#include "core/cpu.h"
#include "core/sequences.h"
#include "core/tiers.h"
#include "core/visibility.h"
#include "core/workspace.h"

#include <assert.h>
#include <string.h>

enum { WORK_OF_A_WEIGHT = 16 };

typedef struct {
    const attn_problem *p;
    const attn_attention_kernel *kernel;
    ptrdiff_t n_row_tasks; /* of one (batch, kv head), unless queries are packed */

    /* While tasks are split over the threads: */
    char *partials; /* (chunks of a round) each of partial_size bytes */
    ptrdiff_t partial_size;

    /* One task, as many chunks at once as have room: */
    const attn_task *task;
    ptrdiff_t first_key; /* of this round */

    /* Whole tasks, as many at once as have room: */
    ptrdiff_t first_task; /* of this round */
    ptrdiff_t n_chunks;   /* of a task, at most */
} job;

/* The int64 of a (B,) array at a batch, or the default where there is none. */
static int64_t
index_at(const attn_problem *p, const attn_array *array, ptrdiff_t b,
         int64_t default_value)
{
    const char *at = attn_address(array, &p->batch, b, 0, 0);
    return at == NULL ? default_value : *(const int64_t *)(const void *)at;
}

/* The first of a batch's row tasks, among those of all batches for one kv head. A packed
 * batch may have one more than it needs, at its end, so that where they are needs no table:
 * floor(a + b) - floor(a) + 1 >= ceil(b). */
static ptrdiff_t
first_row_task(const void *of, ptrdiff_t b)
{
    const job *j = of;
    const attn_problem *p = j->p;
    const int64_t *starts = attn_query_starts(p->packed);

    return starts == NULL ? b * j->n_row_tasks
                          : p->group * (ptrdiff_t)starts[b] / p->task_rows + b;
}

/* The batch that has a row task. */
static ptrdiff_t
batch_of_row_task(const job *j, ptrdiff_t row_task)
{
    return attn_query_starts(j->p->packed) == NULL
               ? row_task / j->n_row_tasks
               : attn_batch_at(first_row_task, j, j->p->batch.n, row_task);
}

/* Where a group's weights are; NULL where they are not wanted. */
static char *
weights_at(const attn_problem *p, ptrdiff_t b, ptrdiff_t kv_head)
{
    const attn_weights *w = p->weights;
    ptrdiff_t group = w->groups == NULL ? kv_head : (ptrdiff_t)w->groups[kv_head];

    return group < 0 ? NULL
                     : attn_address(&w->array, &p->batch, b, group * p->group, 0);
}

static void
set_addresses(const attn_problem *p, ptrdiff_t b, ptrdiff_t kv_head, attn_task *task)
{
    ptrdiff_t head = kv_head * p->group;
    ptrdiff_t query = attn_first_query(p, b);
    ptrdiff_t key = attn_first_key(p, b);

    task->query = attn_address(&p->query, &p->batch, b, head, query);
    task->key = attn_address(&p->key, &p->batch, b, kv_head, key);
    task->value = attn_address(&p->value, &p->batch, b, kv_head, key);
    task->key_scale = attn_address(&p->key_scale, &p->batch, b, kv_head, key);
    task->value_scale = attn_address(&p->value_scale, &p->batch, b, kv_head, key);
    task->mask = attn_address(&p->mask, &p->batch, b, head, 0);
    task->bias = attn_address(&p->bias, &p->batch, b, head, 0);
    task->sinks = attn_address(&p->sinks, &p->batch, b, head, 0);
    task->output = attn_address(&p->output, &p->batch, b, head, query);
    task->weights = p->weights == NULL ? NULL : weights_at(p, b, kv_head);
    task->lse = attn_address(&p->lse, &p->batch, b, head, query);
}

void
attn_set_up_task(const attn_problem *p, ptrdiff_t b, ptrdiff_t kv_head, attn_task *task)
{
    int64_t n_keys = attn_n_keys(p, b);
    int64_t length = index_at(p, &p->kv_lengths, b, n_keys);
    int64_t offset = p->top_left ? 0 : length - task->n_queries;

    task->batch = b;
    task->first_head = kv_head * p->group;
    task->q_offset = index_at(p, &p->q_offset, b, offset);
    task->kv_length = length;
    set_addresses(p, b, kv_head, task);
    attn_see_ranges(p, task->q_offset, length, task);
}

/* Sets up the index-th task; false where it has no rows. */
static bool
set_up_task(const job *j, ptrdiff_t index, attn_task *task)
{
    const attn_problem *p = j->p;
    ptrdiff_t b = batch_of_row_task(j, index / p->n_kv_heads);
    ptrdiff_t first = first_row_task(j, b), n = first_row_task(j, b + 1) - first;
    ptrdiff_t of_batch = index - first * p->n_kv_heads;
    /* Last rows first: causal ones see the most, so the light tasks come at the end. */
    ptrdiff_t row_task = n - 1 - of_batch % n;

    task->n_queries = attn_n_queries(p, b);
    task->first_row = row_task * p->task_rows;
    task->n_rows = p->group * task->n_queries - task->first_row;
    if (task->n_rows <= 0) {
        return false;
    }
    task->n_rows = task->n_rows < p->task_rows ? task->n_rows : p->task_rows;
    attn_set_up_task(p, b, of_batch / n, task);
    return true;
}

static void
run_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;
    attn_task task;

    if (set_up_task(j, index, &task)) {
        j->kernel->run(j->p, &task, worker);
    }
}

static void
run_chunk(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;

    j->kernel->run_chunk(j->p, j->task, j->first_key + index * ATTN_CHUNK,
                         j->partials + index * j->partial_size, worker);
}

/* One task on all threads: chunks of its keys in rounds of n_partials, combined in ascending
 * order. */
static int
split_task(job *j, ptrdiff_t index, ptrdiff_t n_partials, const attn_worker *combiner,
           attn_call *call)
{
    attn_tasks chunks = {.work = attn_attention_work(j->p),
                         .workspace_size = j->kernel->workspace_size(j->p),
                         .clears = true,
                         .run = run_chunk,
                         .context = j};
    attn_task task;
    ptrdiff_t from, to;

    if (!set_up_task(j, index, &task)) {
        return 0;
    }
    attn_seen_keys(&task, &from, &to);
    j->task = &task;
    j->kernel->begin_combine(j->p, &task, combiner);
    for (j->first_key = from / ATTN_CHUNK * ATTN_CHUNK; j->first_key < to;
         j->first_key += n_partials * ATTN_CHUNK) {
        chunks.n = attn_divide_up(to - j->first_key, ATTN_CHUNK);
        chunks.n = chunks.n < n_partials ? chunks.n : n_partials;
        if (attn_run_tasks(&chunks, call) < 0) {
            return -1;
        }
        if (attn_gives_up(combiner)) {
            break;
        }
        for (ptrdiff_t i = 0; i < chunks.n; i++) {
            j->kernel->combine(j->partials + i * j->partial_size, combiner);
        }
    }
    j->kernel->end_combine(combiner);
    return 0;
}

/* Sets where the chunks of the keys that some row of a task sees begin; returns their number. */
static ptrdiff_t
chunks_of(const attn_task *task, ptrdiff_t *first_key)
{
    ptrdiff_t from, to;

    attn_seen_keys(task, &from, &to);
    *first_key = from / ATTN_CHUNK * ATTN_CHUNK;
    return to > from ? attn_divide_up(to - *first_key, ATTN_CHUNK) : 0;
}

static ptrdiff_t
most_chunks(const job *j, ptrdiff_t n_tasks)
{
    attn_task task;
    ptrdiff_t first_key, most = 1;

    for (ptrdiff_t i = 0; i < n_tasks; i++) {
        ptrdiff_t n = set_up_task(j, i, &task) ? chunks_of(&task, &first_key) : 0;
        most = n > most ? n : most;
    }
    return most;
}

/* A chunk of one of the round's tasks. */
static void
run_chunk_of_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;
    attn_task task;
    ptrdiff_t first_key, chunk = index % j->n_chunks;

    if (set_up_task(j, j->first_task + index / j->n_chunks, &task) &&
        chunk < chunks_of(&task, &first_key)) {
        j->kernel->run_chunk(j->p, &task, first_key + chunk * ATTN_CHUNK,
                             j->partials + index * j->partial_size, worker);
    }
}

/* One of the round's tasks from its chunks, in ascending order. */
static void
combine_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;
    attn_task task;
    ptrdiff_t first_key;

    if (!set_up_task(j, j->first_task + index, &task)) {
        return;
    }
    ptrdiff_t first = index * j->n_chunks, end = first + chunks_of(&task, &first_key);
    j->kernel->begin_combine(j->p, &task, worker);
    for (ptrdiff_t i = first; i < end; i++) {
        j->kernel->combine(j->partials + i * j->partial_size, worker);
    }
    j->kernel->end_combine(worker);
}

/* The chunks of several tasks on all threads, then these tasks: they need not wait for each
 * other. A call that gives up runs nothing more, so that no chunk is missing. */
static int
split_tasks(job *j, ptrdiff_t n_tasks, attn_call *call)
{
    const size_t size = j->kernel->workspace_size(j->p);
    const double work = attn_attention_work(j->p);
    attn_tasks chunks = {.n = n_tasks * j->n_chunks,
                         .work = work,
                         .workspace_size = size,
                         .clears = true,
                         .run = run_chunk_of_task,
                         .context = j};
    attn_tasks tasks = {.n = n_tasks,
                        .work = work / ATTN_CHUNK,
                        .workspace_size = size,
                        .clears = true,
                        .run = combine_task,
                        .context = j};

    return attn_run_tasks(&chunks, call) < 0 ? -1 : attn_run_tasks(&tasks, call);
}

/* Runs rounds of split tasks on all threads. */
static int
run_rounds(job *j, ptrdiff_t n_tasks, ptrdiff_t n_partials, const attn_worker *combiner,
           attn_call *call)
{
    int status = 0;

    j->n_chunks = n_tasks > 1 ? most_chunks(j, n_tasks) : n_partials;
    ptrdiff_t at_once = n_partials / j->n_chunks;
    for (ptrdiff_t i = 0; i < n_tasks && status == 0; i += at_once > 1 ? at_once : 1) {
        ptrdiff_t left = n_tasks - i;
        j->first_task = i;
        status = at_once > 1 ? split_tasks(j, left < at_once ? left : at_once, call)
                             : split_task(j, i, n_partials, combiner, call);
    }
    return status;
}

static int
run_split(job *j, ptrdiff_t n_tasks, int n_threads, attn_call *call)
{
    ptrdiff_t n_partials = (ptrdiff_t)ATTN_PARTIALS_PER_THREAD * n_threads;
    attn_worker combiner = {
        .tier = call->tier, .control = &call->control, .is_caller = true};
    uint32_t control_word = attn_fp_control_reset();
    int status = -1;

    j->partial_size = (ptrdiff_t)j->kernel->partial_size(j->p);
    combiner.workspace = attn_workspace_acquire(j->kernel->workspace_size(j->p));
    if (combiner.workspace != NULL) {
        memset(combiner.workspace, 0, ATTN_CLEAR_BYTES);
        j->partials = attn_workspace_acquire((size_t)(n_partials * j->partial_size));
    }
    if (j->partials != NULL) {
        status = run_rounds(j, n_tasks, n_partials, &combiner, call);
    }
    attn_workspace_release(j->partials);
    attn_workspace_release(combiner.workspace); /* last: whole tasks take it first */
    attn_fp_control_restore(control_word);
    return status;
}

double
attn_attention_work(const attn_problem *p)
{
    /* A row counts as one key more, for its beginning and end. */
    double keys = (double)p->batch.n * (double)p->n_keys;
    double scores = (double)p->n_queries * (keys + (double)p->batch.n);
    ptrdiff_t bytes = p->head_dim * attn_storage_of(p->key.dtype)->bytes +
                      p->value_dim * attn_storage_of(p->value.dtype)->bytes;

    if (attn_query_starts(p->packed) != NULL || attn_key_starts(p->packed) != NULL) {
        keys = scores = 0;
        for (ptrdiff_t b = 0; b < p->batch.n; b++) {
            double length = (double)attn_n_keys(p, b);
            keys += length;
            scores += (double)attn_n_queries(p, b) * (length + 1);
        }
    }
    scores *=
        (double)p->group * (double)(p->head_dim + p->value_dim + WORK_OF_A_WEIGHT);
    return (double)p->n_kv_heads *
           (scores + keys * (double)bytes * ATTN_WORK_OF_A_BYTE);
}

static job
job_of(const attn_problem *p)
{
    return (job){.p = p,
                 .n_row_tasks = attn_divide_up(p->group * p->n_queries, p->task_rows)};
}

ptrdiff_t
attn_attention_tasks(const attn_problem *p)
{
    job j = job_of(p);

    return first_row_task(&j, p->batch.n) * p->n_kv_heads;
}

/* Threads end at most one task later than if all work were evenly spread (Graham, 1966), so tasks
 * should be small where a thread has few. Tasks of ATTN_TILE_ROWS take some 1/10 longer for the
 * same rows; they pay off where a thread would have fewer than 4 tasks. Tasks of ATTN_VECTOR_ROWS
 * may take 1/2 longer; they pay off where there is less than a task for each thread, and too few
 * keys to share. Two threads end together more often, and only need a task each. Measured by
 * `python -m benchmarks experiments cores`. */
static ptrdiff_t
rows_for_threads(attn_problem p, int n_threads)
{
    ptrdiff_t wanted = n_threads > 2 ? (ptrdiff_t)4 * n_threads : n_threads;

    if (p.task_rows > ATTN_TILE_ROWS && attn_attention_tasks(&p) < wanted) {
        p.task_rows = ATTN_TILE_ROWS;
    }
    if (p.n_keys <= ATTN_CHUNK && attn_attention_tasks(&p) < n_threads) {
        p.task_rows = ATTN_VECTOR_ROWS;
    }
    return p.task_rows;
}

void
attn_choose_task_rows(attn_problem *p, int n_threads)
{
    ptrdiff_t row =
        (p->head_dim + 2 * p->value_dim) * attn_storage_of(p->arithmetic)->bytes;

    p->task_rows = ATTN_TASK_ROWS * row > 600 << 10 ? ATTN_TILE_ROWS : ATTN_TASK_ROWS;
    if (n_threads > 1 && p->group * p->n_queries > ATTN_VECTOR_ROWS) {
        const attn_call call = {.n_threads = n_threads};
        n_threads = attn_useful_threads(attn_attention_work(p), &call);
        p->task_rows = rows_for_threads(*p, n_threads);
    }
}

/* Would the last round of so few tasks leave more than a quarter of the threads' time unused? Two
 * threads wait for each other rather than combine results, and many rows make many tasks. */
static bool
are_uneven(const attn_problem *p, ptrdiff_t n_tasks, ptrdiff_t n_threads)
{
    ptrdiff_t rounds = attn_divide_up(n_tasks, n_threads);

    return n_threads > 2 && p->group * p->n_queries <= ATTN_TASK_ROWS &&
           4 * n_tasks < 3 * rounds * n_threads;
}

attn_arrangement
attn_arrange(const attn_problem *p, const attn_call *call)
{
    attn_arrangement a = {.n_tasks = attn_attention_tasks(p),
                          .work = attn_attention_work(p)};

    a.n_threads = attn_threads_for(a.n_tasks, a.work, call);
    if (p->n_keys > ATTN_CHUNK && a.n_tasks > 0) {
        int n_threads = attn_useful_threads(a.work, call);
        if (a.n_tasks < n_threads || are_uneven(p, a.n_tasks, n_threads)) {
            a.shares_keys = true;
            a.n_threads = n_threads;
        }
    }
    return a;
}

bool
attn_nth_task(const attn_problem *p, ptrdiff_t index, attn_task *task)
{
    job j = job_of(p);

    return set_up_task(&j, index, task);
}

/* Does each thread take whole heads, one after the other, so that it alone reads their keys? Only
 * with at least two for each, because the first and last rows of a causal head differ in work. */
static bool
share_heads(const attn_problem *p, int n_threads)
{
    return p->batch.n * p->n_kv_heads >= 2 * (ptrdiff_t)n_threads;
}

int
attn_attention(const attn_problem *p, attn_call *call)
{
    job j = job_of(p);
    attn_arrangement a = attn_arrange(p, call);
    attn_tasks tasks = {.n = a.n_tasks,
                        .work = a.work,
                        .in_runs = share_heads(p, a.n_threads),
                        .clears = true,
                        .run = run_task,
                        .context = &j};

    j.kernel = attn_attention_kernel_for(p, call->tier);
    assert(p->task_rows > 0 && p->task_rows <= ATTN_TASK_ROWS);
    assert(p->arithmetic == attn_storage_of(p->output.dtype)->arithmetic);
    if (tasks.n == 0) {
        return 0;
    }
    if (a.shares_keys && run_split(&j, tasks.n, a.n_threads, call) == 0) {
        return 0;
    }
    tasks.workspace_size = j.kernel->workspace_size(p);
    return attn_run_tasks(&tasks, call);
}
