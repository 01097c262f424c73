/* The driver of attention backwards: splits a call into tasks that never add to the same
 * number. One task for each (batch, kv head) computes five products. Those that are left when all
 * threads had as many are divided: tasks of keys, and tasks of tiles of rows, compute seven. */
#include "core/backward.h"

#include "core/sequences.h"
#include "core/tiers.h"
#include "core/workspace.h"

#include <assert.h>

#define ALL PTRDIFF_MAX /* up to the last one */

/* Floats that a workspace may have for sums: it stays below 1 MiB, and so it is kept. */
#define MOST_SUMS (160 << 10)

/* Steps of a range, of `size` each; one is the whole range. */
typedef struct {
    ptrdiff_t n, size;
} steps;

/* Tasks of the units from `first` up to `end`. A unit is a batch and a kv head: all batches where
 * `batches` is 1, and all heads where `kv_heads` is. Each is cut into tiles of rows and keys. */
typedef struct {
    ptrdiff_t batches, kv_heads;
    ptrdiff_t first, end;
    steps tiles, keys;
    attn_backward_task wants;
} task_list;

/* Whole units; those that sum over rows, and over keys, of the other units. */
enum { WHOLE, BY_KEY, BY_ROW, N_LISTS };

typedef struct {
    const attn_backward_problem *g;
    const attn_backward_kernel *kernel;
    task_list lists[N_LISTS];
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

/* `size` at a time. */
static steps
steps_of(ptrdiff_t n, ptrdiff_t size)
{
    return (steps){attn_divide_up(n, size), size};
}

static ptrdiff_t
count_tasks(const task_list *list)
{
    return (list->end - list->first) * list->tiles.n * list->keys.n;
}

static task_list
all_units(ptrdiff_t batches, ptrdiff_t kv_heads, const attn_backward_task *wants)
{
    return (task_list){.batches = batches,
                       .kv_heads = kv_heads,
                       .end = batches * kv_heads,
                       .tiles = {1, ALL},
                       .keys = {1, ALL},
                       .wants = *wants};
}

/* Step i of a range. */
static void
cut(ptrdiff_t i, steps s, ptrdiff_t *first, ptrdiff_t *end)
{
    *first = s.n == 1 ? 0 : i * s.size;
    *end = s.n == 1 ? s.size : (i + 1) * s.size;
}

static void
run_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;
    const attn_problem *p = &j->g->attention;
    const task_list *list = j->lists;

    for (; index >= count_tasks(list); list++) {
        index -= count_tasks(list);
    }
    attn_backward_task task = list->wants;
    steps kv_heads = {list->kv_heads, list->kv_heads == 1 ? p->n_kv_heads : 1};
    steps batches = {list->batches, list->batches == 1 ? p->batch.n : 1};
    cut(index % list->keys.n, list->keys, &task.first_key, &task.end_key);
    index /= list->keys.n;
    cut(index % list->tiles.n, list->tiles, &task.first_tile, &task.end_tile);
    ptrdiff_t unit = list->first + index / list->tiles.n;
    cut(unit % list->kv_heads, kv_heads, &task.first_kv_head, &task.end_kv_head);
    cut(unit / list->kv_heads, batches, &task.first_batch, &task.end_batch);
    j->kernel->run(j->g, &task, worker);
}

static int
run_tasks(const job *j, double work, attn_call *call)
{
    attn_tasks tasks = {.work = work,
                        .workspace_size = j->kernel->workspace_size(j->g),
                        /* A head prefetches the next one: other threads write to it. */
                        .in_runs = count_tasks(&j->lists[BY_ROW]) == 0,
                        .run = run_task,
                        .context = j};

    for (int k = 0; k < N_LISTS; k++) {
        tasks.n += count_tasks(&j->lists[k]);
    }
    return attn_run_tasks(&tasks, call);
}

/* How many of n units are divided among the threads. Those that are left when all threads had as
 * many take the time of a whole one, or their share of the tasks that they are divided into. */
static ptrdiff_t
count_divided(const job *j, ptrdiff_t n, ptrdiff_t n_threads)
{
    ptrdiff_t rest = n % n_threads;

    return rest * j->kernel->divided_work < 10 * n_threads ? rest : 0;
}

/* Steps of n tiles or blocks for each of n_units: up to `most` together, as long as each thread has
 * n_each. */
static steps
share(ptrdiff_t n, ptrdiff_t n_units, ptrdiff_t most, ptrdiff_t n_each)
{
    ptrdiff_t size = n * n_units / n_each;

    size = size < most ? size : most;
    return steps_of(n, size > 1 ? size : 1);
}

/* Divides the last units into tasks that sum over rows and tasks that sum over keys. */
static void
divide_units(job *j, ptrdiff_t n_divided, ptrdiff_t n_threads)
{
    enum { TILES = 8 };
    const attn_problem *p = &j->g->attention;
    task_list *by_key = &j->lists[BY_KEY], *by_row = &j->lists[BY_ROW];

    *by_key = *by_row = j->lists[WHOLE];
    by_key->first = by_row->first = j->lists[WHOLE].end -= n_divided;
    by_key->keys = share(attn_divide_up(p->n_keys, ATTN_BLOCK), n_divided,
                         ATTN_CHUNK / ATTN_BLOCK, n_threads);
    by_key->keys.size *= ATTN_BLOCK;
    by_row->tiles =
        share(attn_backward_tiles(p, p->n_queries), n_divided, TILES, 4 * n_threads);
    by_key->wants.query = by_key->wants.bias = false;
    by_row->wants.key = by_row->wants.value = false;
}

/* The gradients of query, key and value, and of a bias that is whole. */
static int
run_pass(job *j, attn_call *call)
{
    const attn_backward_problem *g = j->g;
    const attn_problem *p = &g->attention;
    bool shared = are_shared(p, &g->grad_query, &g->grad_key, &g->grad_value);
    double work = attn_backward_work(p);
    ptrdiff_t n_threads = attn_useful_threads(work, call);
    attn_backward_task wants = {.query = g->grad_query.data != NULL,
                                .key = g->grad_key.data != NULL,
                                .value = g->grad_value.data != NULL,
                                .bias = g->grad_bias.data != NULL && is_bias_whole(g)};
    task_list *whole = &j->lists[WHOLE];

    *whole = all_units(shared ? 1 : p->batch.n, p->n_kv_heads, &wants);
    ptrdiff_t n_divided = count_divided(j, whole->end, n_threads);
    if (n_divided > 0) {
        divide_units(j, n_divided, n_threads);
    }
    for (int k = 0; k < N_LISTS; k++) {
        const attn_backward_task *w = &j->lists[k].wants;
        if (!w->query && !w->key && !w->value && !w->bias) {
            j->lists[k].end = j->lists[k].first; /* none */
        }
    }
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
    attn_backward_task wants = {.bias = true};

    if (bias->data == NULL || is_bias_whole(g)) {
        return 0;
    }
    task_list list = all_units(shares_batches(&p->batch, bias, NULL) ? 1 : p->batch.n,
                               shares_heads ? 1 : p->n_kv_heads, &wants);
    if (!shares_heads && !shares_rows) {
        list.tiles = steps_of(attn_backward_tiles(p, p->n_queries), 1);
    } else if (bias->column_stride != 0) { /* tiles may be of other heads, same rows */
        list.keys = steps_of(p->n_keys, ATTN_BLOCK);
    }
    j->lists[WHOLE] = j->lists[BY_KEY] = (task_list){0};
    j->lists[BY_ROW] = list;
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
