/* The driver: splits a call into tasks, gives each thread a workspace and runs the kernel.
 * Validates nothing: what comes here is valid. */
#include "attention.h"

typedef struct {
    const attn_problem *p;
    const attn_kernel *kernel;
    attn_control *control;
    ptrdiff_t n_row_tasks; /* tasks of one (batch, kv head) */
    void **workspaces;     /* one for each worker */

    /* While one task is split over the threads: */
    const attn_task *task;
    ptrdiff_t first_key; /* of this round */
    char *partials;      /* (chunks of a round) each of partial_size bytes */
    ptrdiff_t partial_size;
} call;

/* The address of an array at a batch, and at the given head of it. */
static char *
address(const attn_problem *p, const attn_array *array, ptrdiff_t batch, ptrdiff_t head)
{
    char *at = array->data;

    if (at == NULL) {
        return NULL;
    }
    for (int axis = p->n_batch_axes - 1; axis >= 0; axis--) {
        at += batch % p->batch_shape[axis] * array->batch_stride[axis];
        batch /= p->batch_shape[axis];
    }
    return at + head * array->head_stride;
}

/* The int64 of a (B,) array at a batch, or the default where there is none. */
static int64_t
index_at(const attn_problem *p, const attn_array *array, ptrdiff_t batch,
         int64_t default_value)
{
    const char *at = address(p, array, batch, 0);
    return at == NULL ? default_value : *(const int64_t *)(const void *)at;
}

ptrdiff_t
attn_task_rows(const attn_problem *p)
{
    ptrdiff_t size = p->arithmetic == ATTN_F64 ? 8 : 4;
    ptrdiff_t rows = ATTN_TASK_ROWS;

    while (rows > 32 && rows * (p->head_dim + 2 * p->value_dim) * size > 600 << 10) {
        rows /= 2;
    }
    return rows;
}

static void
set_up_task(const call *c, ptrdiff_t index, attn_task *task)
{
    const attn_problem *p = c->p;
    ptrdiff_t head_index = index / c->n_row_tasks;
    ptrdiff_t batch = head_index / p->n_kv_heads;
    ptrdiff_t kv_head = head_index % p->n_kv_heads;
    ptrdiff_t head = kv_head * p->group;
    /* Last rows first: causal ones see the most, so the light tasks come at the end. */
    ptrdiff_t row_task = c->n_row_tasks - 1 - index % c->n_row_tasks;
    ptrdiff_t task_rows = attn_task_rows(p);
    ptrdiff_t rows_left = p->group * p->n_queries - row_task * task_rows;
    int64_t length = index_at(p, &p->kv_lengths, batch, p->n_keys);
    int64_t offset = p->top_left ? 0 : length - p->n_queries;

    task->query = address(p, &p->query, batch, head);
    task->key = address(p, &p->key, batch, kv_head);
    task->value = address(p, &p->value, batch, kv_head);
    task->mask = address(p, &p->mask, batch, head);
    task->bias = address(p, &p->bias, batch, head);
    task->sinks = address(p, &p->sinks, batch, head);
    task->output = address(p, &p->output, batch, head);
    task->weights = address(p, &p->weights, batch, head);
    task->lse = address(p, &p->lse, batch, head);
    task->first_row = row_task * task_rows;
    task->n_rows = rows_left < task_rows ? rows_left : task_rows;
    attn_see_ranges(p, index_at(p, &p->q_offset, batch, offset), length, task);
}

static void
run_task(void *context, ptrdiff_t index, int worker)
{
    const call *c = context;
    uint32_t control_word = attn_fp_control_reset();
    attn_task task;

    set_up_task(c, index, &task);
    c->kernel->run(c->p, &task, c->workspaces[worker], c->control, worker == 0);
    attn_fp_control_restore(control_word);
}

static void
run_chunk(void *context, ptrdiff_t index, int worker)
{
    const call *c = context;
    uint32_t control_word = attn_fp_control_reset();

    c->kernel->run_chunk(c->p, c->task, c->first_key + index * ATTN_CHUNK,
                         c->workspaces[worker], c->partials + index * c->partial_size,
                         c->control, worker == 0);
    attn_fp_control_restore(control_word);
}

/* The keys that some row of a task may see: *from up to but not *to. */
static void
visible_keys(const attn_task *task, ptrdiff_t *from, ptrdiff_t *to)
{
    *from = PTRDIFF_MAX;
    *to = 0;
    for (ptrdiff_t r = 0; r < task->n_rows; r++) {
        if (task->see_from[r] < task->see_to[r]) {
            *from = task->see_from[r] < *from ? task->see_from[r] : *from;
            *to = task->see_to[r] > *to ? task->see_to[r] : *to;
        }
    }
}

/* One task on all threads: chunks of its keys in rounds of n_partials, merged in ascending
 * order as ever. The last workspace is for the merging. */
static void
split_task(call *c, ptrdiff_t index, int n_threads, ptrdiff_t n_partials)
{
    void *merging = c->workspaces[n_threads];
    uint32_t control_word = attn_fp_control_reset();
    attn_task task;
    ptrdiff_t from, to;

    set_up_task(c, index, &task);
    visible_keys(&task, &from, &to);
    c->task = &task;
    c->kernel->begin_merge(c->p, &task, merging);
    for (c->first_key = from / ATTN_CHUNK * ATTN_CHUNK; c->first_key < to;
         c->first_key += n_partials * ATTN_CHUNK) {
        ptrdiff_t n_chunks = (to - c->first_key + ATTN_CHUNK - 1) / ATTN_CHUNK;
        n_chunks = n_chunks < n_partials ? n_chunks : n_partials;
        attn_parallel_for(n_chunks, n_threads, run_chunk, c, c->control);
        if (attn_should_stop(c->control, true)) {
            break;
        }
        for (ptrdiff_t i = 0; i < n_chunks; i++) {
            c->kernel->merge(merging, c->partials + i * c->partial_size);
        }
    }
    c->kernel->end_merge(merging, c->control);
    attn_fp_control_restore(control_word);
}

static double
multiplications(const attn_problem *p)
{
    double pairs = (double)p->n_batch * (double)p->n_kv_heads * (double)p->group *
                   (double)p->n_queries * (double)p->n_keys;
    return pairs * (double)(p->head_dim + p->value_dim + 16);
}

/* Runs every task on one thread each. */
static int
run_whole(call *c, ptrdiff_t n_tasks, int n_threads, size_t size)
{
    n_threads = n_tasks < n_threads ? (int)n_tasks : n_threads;
    int n = attn_acquire_workspaces(c->workspaces, n_threads, size);

    if (n == 0) {
        return -1;
    }
    attn_parallel_for(n_tasks, n, run_task, c, c->control);
    while (n > 0) {
        attn_workspace_release(c->workspaces[--n]);
    }
    return 0;
}

/* Runs task by task on all threads; false if there is no memory for that. */
static bool
run_split(call *c, ptrdiff_t n_tasks, int n_threads, size_t size)
{
    ptrdiff_t n_partials = ATTN_PARTIALS_PER_THREAD * n_threads;
    int n = attn_acquire_workspaces(c->workspaces, n_threads + 1, size);
    bool enough = n == n_threads + 1;

    c->partial_size = (ptrdiff_t)c->kernel->partial_size(c->p);
    c->partials =
        !enough ? NULL : attn_workspace_acquire((size_t)(n_partials * c->partial_size));
    for (ptrdiff_t i = 0; c->partials != NULL && i < n_tasks; i++) {
        split_task(c, i, n_threads, n_partials);
    }
    enough = c->partials != NULL;
    if (enough) {
        attn_workspace_release(c->partials);
    }
    while (n > 0) {
        attn_workspace_release(c->workspaces[--n]);
    }
    return enough;
}

int
attn_attention(const attn_problem *p, const attn_tier *tier, int n_threads,
               attn_poll poll, void *poll_context)
{
    attn_control control = {.poll = poll, .poll_context = poll_context};
    bool all_bf16 = p->query.dtype == ATTN_BF16 && p->key.dtype == ATTN_BF16 &&
                    p->value.dtype == ATTN_BF16;
    void *workspaces[ATTN_MAX_THREADS + 1];
    call c = {.p = p,
              .kernel = attn_kernel_for(tier, p->arithmetic, all_bf16),
              .control = &control,
              .workspaces = workspaces};
    size_t size = c.kernel->workspace_size(p);
    ptrdiff_t rows = p->group * p->n_queries;

    c.n_row_tasks = (rows + attn_task_rows(p) - 1) / attn_task_rows(p);
    ptrdiff_t n_tasks = p->n_batch * p->n_kv_heads * c.n_row_tasks;
    if (n_tasks == 0) {
        return 0;
    }
    n_threads = attn_useful_threads(multiplications(p), n_threads);
    if (n_threads > 1 && n_tasks < n_threads && p->n_keys > ATTN_CHUNK &&
        run_split(&c, n_tasks, n_threads, size)) {
        return 0;
    }
    return run_whole(&c, n_tasks, n_threads, size);
}
