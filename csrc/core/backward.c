/* The driver of attention backwards: splits a call into tasks that never add to the same
 * number. One task for each (batch, kv head) computes five products; where these are too few
 * for the threads, tasks of a tile of rows and tasks of a block of keys, seven. */
#include "core/backward.h"

#include "core/sequences.h"
#include "core/tiers.h"
#include "core/workspace.h"

#include <assert.h>

#define ALL PTRDIFF_MAX /* up to the last one */

/* Floats that a workspace may have for sums: it stays below 1 MiB, and so it is kept. */
#define MOST_SUMS (160 << 10)

/* How many steps each range is cut into for a list of tasks: the product is the number of tasks. */
typedef struct {
    ptrdiff_t batches, kv_heads, tiles, keys;
} counts;

typedef struct {
    const attn_backward_problem *g;
    const attn_backward_kernel *kernel;
    counts by_row; /* the tasks that sum over keys */
    counts by_key; /* those that sum over rows */
    attn_backward_task row_wants, key_wants;
} job;

/* Heads whose rows are in one tile. */
static ptrdiff_t
heads_of_tile(ptrdiff_t n_queries)
{
    return n_queries < ATTN_TASK_ROWS ? ATTN_TASK_ROWS / n_queries : 1;
}

ptrdiff_t
attn_backward_tiles(const attn_problem *p, ptrdiff_t n_queries)
{
    if (n_queries == 0) {
        return 0;
    }
    return attn_divide_up(p->group, heads_of_tile(n_queries)) *
           attn_divide_up(n_queries, ATTN_TASK_ROWS);
}

void
attn_set_up_tile(const attn_problem *p, ptrdiff_t b, ptrdiff_t kv_head, ptrdiff_t tile,
                 attn_task *task)
{
    ptrdiff_t n_queries = attn_n_queries(p, b);
    ptrdiff_t n_heads = heads_of_tile(n_queries);
    ptrdiff_t of_head = attn_divide_up(n_queries, ATTN_TASK_ROWS);
    ptrdiff_t head = tile / of_head * n_heads;
    ptrdiff_t first = tile % of_head * ATTN_TASK_ROWS;
    ptrdiff_t n_rows = n_queries - first;

    if (n_heads > 1) {
        n_rows *= p->group - head < n_heads ? p->group - head : n_heads;
    }
    task->n_queries = n_queries;
    task->first_row = head * n_queries + first;
    task->n_rows = n_rows < ATTN_TASK_ROWS ? n_rows : ATTN_TASK_ROWS;
    attn_set_up_task(p, b, kv_head, task);
}

/* Do several batches share rows of an array? Not without an array. */
static bool
shares_batches(const attn_batch *batch, const attn_array *array, const int64_t *starts)
{
    bool shares = false;

    for (int axis = 0; axis < batch->n_axes && array->data != NULL; axis++) {
        shares |= batch->shape[axis] > 1 && array->batch_stride[axis] == 0;
    }
    return shares && starts == NULL;
}

/* Are these inputs, or gradients, the same for several batches? */
static bool
are_shared(const attn_problem *p, const attn_array *query, const attn_array *key,
           const attn_array *value)
{
    return shares_batches(&p->batch, query, attn_query_starts(p->packed)) ||
           shares_batches(&p->batch, key, attn_key_starts(p->packed)) ||
           shares_batches(&p->batch, value, attn_key_starts(p->packed));
}

bool
attn_backward_rounds(const attn_problem *p, bool query)
{
    double sums = ATTN_CHUNK * ((double)p->head_dim + (double)p->value_dim);

    if (query) {
        sums += (double)p->group * (double)p->n_queries * (double)p->head_dim;
    }
    return p->arithmetic == ATTN_F32 && sums <= MOST_SUMS &&
           !are_shared(p, &p->query, &p->key, &p->value);
}

/* Does each number of the bias' gradient belong to a single score? */
static bool
is_bias_whole(const attn_backward_problem *g)
{
    const attn_problem *p = &g->attention;
    const attn_array *bias = &g->grad_bias;

    return !shares_batches(&p->batch, bias, NULL) &&
           (bias->head_stride != 0 || p->n_kv_heads * p->group == 1) &&
           (bias->row_stride != 0 || p->n_queries == 1) &&
           (bias->column_stride != 0 || p->n_keys == 1);
}

static ptrdiff_t
count_tasks(const counts *c)
{
    return c->batches * c->kv_heads * c->tiles * c->keys;
}

/* Step i of a range that is cut into n steps of `unit`; with n = 1 the whole range. */
static void
cut(ptrdiff_t i, ptrdiff_t n, ptrdiff_t unit, ptrdiff_t whole, ptrdiff_t *first,
    ptrdiff_t *end)
{
    *first = n == 1 ? 0 : i * unit;
    *end = n == 1 ? whole : (i + 1) * unit;
}

static void
run_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;
    const attn_problem *p = &j->g->attention;
    ptrdiff_t n_by_key = count_tasks(&j->by_key);
    bool is_by_key = index < n_by_key;
    const counts *c = is_by_key ? &j->by_key : &j->by_row;
    attn_backward_task task = is_by_key ? j->key_wants : j->row_wants;

    index -= is_by_key ? 0 : n_by_key;
    cut(index % c->keys, c->keys, ATTN_BLOCK, ALL, &task.first_key, &task.end_key);
    index /= c->keys;
    cut(index % c->tiles, c->tiles, 1, ALL, &task.first_tile, &task.end_tile);
    index /= c->tiles;
    cut(index % c->kv_heads, c->kv_heads, 1, p->n_kv_heads, &task.first_kv_head,
        &task.end_kv_head);
    index /= c->kv_heads;
    cut(index, c->batches, 1, p->batch.n, &task.first_batch, &task.end_batch);
    j->kernel->run(j->g, &task, worker);
}

static int
run_tasks(const job *j, double work, attn_call *call)
{
    attn_tasks tasks = {.n = count_tasks(&j->by_key) + count_tasks(&j->by_row),
                        .work = work,
                        .workspace_size = j->kernel->workspace_size(j->g),
                        /* A head prefetches the next one: other threads write to it. */
                        .in_runs = count_tasks(&j->by_row) == 0,
                        .run = run_task,
                        .context = j};

    return attn_run_tasks(&tasks, call);
}

/* The gradients of query, key and value, and of a bias that is whole. */
static int
run_pass(job *j, attn_call *call)
{
    const attn_backward_problem *g = j->g;
    const attn_problem *p = &g->attention;
    bool shared = are_shared(p, &g->grad_query, &g->grad_key, &g->grad_value);
    double work = attn_backward_work(p);
    ptrdiff_t n_threads = attn_useful_threads(work, call->n_threads);
    counts units = {shared ? 1 : p->batch.n, p->n_kv_heads, 1, 1};
    ptrdiff_t n = count_tasks(&units);
    attn_backward_task wants = {.query = g->grad_query.data != NULL,
                                .key = g->grad_key.data != NULL,
                                .value = g->grad_value.data != NULL,
                                .bias = g->grad_bias.data != NULL && is_bias_whole(g)};

    j->by_key = j->by_row = units;
    j->key_wants = j->row_wants = wants;
    j->by_row.batches = 0; /* none */
    /* Seven products on all threads, or five in rounds that some of them miss? */
    if (5 * n_threads * attn_divide_up(n, n_threads) > 7 * n) {
        j->by_row = units;
        j->by_row.tiles = attn_backward_tiles(p, p->n_queries);
        j->by_key.keys = attn_divide_up(p->n_keys, ATTN_BLOCK);
        j->key_wants.query = j->key_wants.bias = false;
        j->row_wants.key = j->row_wants.value = false;
    }
    j->by_row.batches *= j->row_wants.query || j->row_wants.bias;
    j->by_key.batches *= j->key_wants.query || j->key_wants.key || j->key_wants.value ||
                         j->key_wants.bias;
    return run_tasks(j, work, call);
}

/* The gradient of a bias whose numbers belong to several scores each: one task has all
 * the scores of a number. */
static int
run_shared_bias(job *j, attn_call *call)
{
    const attn_backward_problem *g = j->g;
    const attn_problem *p = &g->attention;
    const attn_array *bias = &g->grad_bias;
    bool shares_heads = bias->head_stride == 0 && p->n_kv_heads * p->group > 1;
    bool shares_rows = bias->row_stride == 0 && p->n_queries > 1;
    counts c = {shares_batches(&p->batch, bias, NULL) ? 1 : p->batch.n,
                shares_heads ? 1 : p->n_kv_heads, 1, 1};

    if (bias->data == NULL || is_bias_whole(g)) {
        return 0;
    }
    if (!shares_heads && !shares_rows) {
        c.tiles = attn_backward_tiles(p, p->n_queries);
    } else if (bias->column_stride != 0) { /* tiles may be of other heads, same rows */
        c.keys = attn_divide_up(p->n_keys, ATTN_BLOCK);
    }
    j->by_row = c;
    j->by_key = (counts){0};
    j->row_wants = (attn_backward_task){.bias = true};
    return run_tasks(j, attn_attention_work(p), call);
}

static void
run_delta(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;
    ptrdiff_t n_kv_heads = j->g->attention.n_kv_heads;

    j->kernel->run_delta(j->g, index / n_kv_heads, index % n_kv_heads, worker);
}

static void
run_sink(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;

    j->kernel->run_sink(j->g, index, worker);
}

/* All steps; those of the sinks only if there is a delta. */
static int
run_steps(job *j, attn_call *call)
{
    const attn_backward_problem *g = j->g;
    const attn_problem *p = &g->attention;
    double n_rows = (double)p->batch.n * (double)p->n_kv_heads * (double)p->group *
                    (double)p->n_queries;
    attn_tasks deltas = {.n = p->batch.n * p->n_kv_heads,
                         .work = n_rows * (double)p->value_dim,
                         .workspace_size = j->kernel->workspace_size(g),
                         .run = run_delta,
                         .context = j};
    attn_tasks sinks = {.n = p->n_kv_heads * p->group,
                        .work = n_rows * 16,
                        .run = run_sink,
                        .context = j};

    if (run_pass(j, call) < 0 || run_shared_bias(j, call) < 0) {
        return -1;
    }
    if (g->delta.data == NULL) {
        return 0;
    }
    return attn_run_tasks(&deltas, call) < 0 ? -1 : attn_run_tasks(&sinks, call);
}

/* Describes delta, contiguous and packed as the queries are; returns how many numbers it has. */
static ptrdiff_t
describe_delta(attn_backward_problem *g)
{
    const attn_problem *p = &g->attention;
    attn_array *delta = &g->delta;
    ptrdiff_t n = attn_query_starts(p->packed) == NULL
                      ? p->n_queries
                      : (ptrdiff_t)attn_query_starts(p->packed)[p->batch.n];

    delta->dtype = p->arithmetic;
    delta->row_stride = attn_storage_of(p->arithmetic)->bytes;
    delta->column_stride = 0;
    delta->head_stride = n * delta->row_stride;
    n *= p->n_kv_heads * p->group;
    for (int axis = p->batch.n_axes - 1; axis >= 0; axis--) {
        delta->batch_stride[axis] =
            attn_query_starts(p->packed) == NULL ? n * delta->row_stride : 0;
        n *= attn_query_starts(p->packed) == NULL ? p->batch.shape[axis] : 1;
    }
    return n;
}

double
attn_backward_work(const attn_problem *p)
{
    return 2.5 * attn_attention_work(p);
}

/* The kernel with bfloat16 products if all operands are bfloat16 and it has gradients; otherwise
 * that of the arithmetic's dtype. */
static const attn_backward_kernel *
kernel_for(const attn_backward_problem *g, const attn_tier *tier)
{
    const attn_problem *p = &g->attention;
    bool all_bf16 = p->query.dtype == ATTN_BF16 && p->key.dtype == ATTN_BF16 &&
                    p->value.dtype == ATTN_BF16 && g->grad_output.dtype == ATTN_BF16;
    const attn_kernel *kernel = attn_kernel_for(tier, p->arithmetic, all_bf16);

    if (kernel->backward.run == NULL) {
        kernel = attn_kernel_for(tier, p->arithmetic, false);
    }
    return &kernel->backward;
}

int
attn_backward(const attn_backward_problem *problem, attn_call *call)
{
    attn_backward_problem g = *problem;
    job j = {.g = &g, .kernel = kernel_for(&g, call->tier)};
    int status;

    assert(g.attention.output.data != NULL && g.attention.lse.data != NULL);
    assert(g.attention.lse.dtype == g.attention.arithmetic);
    g.delta.data = NULL;
    if (g.grad_sinks.data != NULL) {
        size_t size = (size_t)describe_delta(&g) * (size_t)g.delta.row_stride;
        g.delta.data = attn_workspace_acquire(size > 0 ? size : 1);
        if (g.delta.data == NULL) {
            return -1;
        }
    }
    status = run_steps(&j, call);
    attn_workspace_release(g.delta.data);
    return status;
}
