/* The drivers of what layers need besides attention: splits rows and columns into tasks.
 * Validates nothing. */
#include "attention.h"

typedef struct {
    const attn_linear_problem *l;
    const attn_kernel *kernel;
    attn_control *control;
    ptrdiff_t n_columns;      /* of a task */
    ptrdiff_t n_column_tasks; /* of the same rows */
    void **workspaces;        /* one for each worker */
} call;

static void
run_task(void *context, ptrdiff_t index, int worker)
{
    const call *c = context;
    uint32_t control_word = attn_fp_control_reset();
    ptrdiff_t row = index / c->n_column_tasks * ATTN_TASK_ROWS;
    ptrdiff_t column = index % c->n_column_tasks * c->n_columns;
    ptrdiff_t rows_left = c->l->n_batch * c->l->n_rows - row;
    ptrdiff_t columns_left = c->l->n_out - column;
    attn_linear_task task = {
        .first_row = row,
        .n_rows = rows_left < ATTN_TASK_ROWS ? rows_left : ATTN_TASK_ROWS,
        .first_column = column,
        .n_columns = columns_left < c->n_columns ? columns_left : c->n_columns};

    c->kernel->run_linear(c->l, &task, c->workspaces[worker], c->control, worker == 0);
    attn_fp_control_restore(control_word);
}

/* Columns of a task in tile form: fewer than there may be where two tasks for each thread
 * would not come out. */
static ptrdiff_t
columns_of_tiles(const attn_linear_problem *l, int n_threads)
{
    ptrdiff_t rows = l->n_batch * l->n_rows;
    ptrdiff_t n_row_tasks = (rows + ATTN_TASK_ROWS - 1) / ATTN_TASK_ROWS;
    ptrdiff_t n_wanted = (2 * n_threads + n_row_tasks - 1) / n_row_tasks;
    ptrdiff_t share =
        (l->n_out / n_wanted + 47) / 48 * 48; /* whole panels of any tier */

    if (n_threads == 1 || share == 0 || share > ATTN_LINEAR_COLUMNS) {
        return ATTN_LINEAR_COLUMNS;
    }
    return share;
}

/* Columns of a task. In row form as many as make the same number of outputs for any number
 * of rows, for W is read in lines that long; less if each thread is to have some. */
static ptrdiff_t
columns_of_task(const attn_linear_problem *l, int n_threads)
{
    ptrdiff_t columns = ATTN_FEW_ROWS_COLUMNS;
    ptrdiff_t share = (l->n_out / n_threads + 64) / 64 * 64;

    if (l->n_batch * l->n_rows > ATTN_FEW_ROWS) {
        return columns_of_tiles(l, n_threads);
    }
    for (ptrdiff_t n = ATTN_FEW_ROWS / 2; n >= l->n_batch * l->n_rows; n /= 2) {
        columns *= 2;
    }
    return share < columns ? share : columns;
}

int
attn_linear(const attn_linear_problem *l, const attn_tier *tier, int n_threads,
            attn_poll poll, void *poll_context)
{
    attn_control control = {.poll = poll, .poll_context = poll_context};
    void *workspaces[ATTN_MAX_THREADS];
    bool all_bf16 = l->input.dtype == ATTN_BF16 && l->weight.dtype == ATTN_BF16;
    call c = {.l = l, .control = &control, .workspaces = workspaces};
    ptrdiff_t rows = l->n_batch * l->n_rows;

    if (rows == 0 || l->n_out == 0) {
        return 0;
    }
    c.kernel = attn_kernel_for(tier, l->arithmetic, all_bf16);
    n_threads = attn_useful_threads((double)rows * (double)l->n_in * (double)l->n_out,
                                    n_threads);
    c.n_columns = columns_of_task(l, n_threads);
    c.n_column_tasks = (l->n_out + c.n_columns - 1) / c.n_columns;
    ptrdiff_t n_tasks = (rows + ATTN_TASK_ROWS - 1) / ATTN_TASK_ROWS * c.n_column_tasks;
    n_threads = n_tasks < n_threads ? (int)n_tasks : n_threads;
    int n = attn_acquire_workspaces(workspaces, n_threads,
                                    c.kernel->linear_workspace_size(l));
    if (n == 0) {
        return -1;
    }
    attn_parallel_for(n_tasks, n, run_task, &c, &control);
    while (n > 0) {
        attn_workspace_release(workspaces[--n]);
    }
    return 0;
}

typedef struct {
    const attn_norm_problem *p;
    const attn_kernel *kernel;
} norm_call;

static void
run_norm_task(void *context, ptrdiff_t index, int worker)
{
    const norm_call *c = context;
    uint32_t control_word = attn_fp_control_reset();
    ptrdiff_t row = index * ATTN_TASK_ROWS, left = c->p->n_rows - row;

    (void)worker;
    c->kernel->normalize(c->p, row, left < ATTN_TASK_ROWS ? left : ATTN_TASK_ROWS);
    attn_fp_control_restore(control_word);
}

void
attn_normalize(const attn_norm_problem *p, const attn_tier *tier, int n_threads,
               attn_poll poll, void *poll_context)
{
    attn_control control = {.poll = poll, .poll_context = poll_context};
    norm_call c = {p, attn_kernel_for(tier, p->arithmetic, false)};
    ptrdiff_t n_tasks = (p->n_rows + ATTN_TASK_ROWS - 1) / ATTN_TASK_ROWS;

    n_threads =
        attn_useful_threads((double)p->n_rows * (double)p->n_columns * 20, n_threads);
    n_threads = n_tasks < n_threads ? (int)n_tasks : n_threads;
    attn_parallel_for(n_tasks, n_threads, run_norm_task, &c, &control);
}

typedef struct {
    const attn_heads_problem *p;
    const attn_kernel *kernel;
    void (*run)(const attn_heads_problem *, const attn_heads_task *,
                const attn_kernel *, void *memory);
    void **workspaces; /* one for each worker */
} heads_call;

/* The address of an array at a batch, and at a row of it; NULL where there is none. */
static char *
address(const attn_heads_problem *p, const attn_array *array, ptrdiff_t batch,
        ptrdiff_t row)
{
    char *at = array->data;

    for (int axis = p->n_batch_axes - 1; axis >= 0 && at != NULL; axis--) {
        at += batch % p->batch_shape[axis] * array->batch_stride[axis];
        batch /= p->batch_shape[axis];
    }
    return at == NULL ? NULL : at + row * array->row_stride;
}

static void
run_token(const heads_call *c, ptrdiff_t token, void *workspace)
{
    const attn_heads_problem *p = c->p;
    ptrdiff_t batch = token / p->n_rows, row = token % p->n_rows, to = row;

    if (p->first_row != NULL) {
        to += p->first_row[batch];
        if (to >= p->end_row[batch]) {
            return;
        }
    }
    attn_heads_task task = {.input = address(p, &p->input, batch, row),
                            .turns = address(p, &p->turns, batch, row),
                            .output = address(p, &p->output, batch, to)};
    c->run(p, &task, c->kernel, workspace);
}

static void
run_heads_task(void *context, ptrdiff_t index, int worker)
{
    const heads_call *c = context;
    uint32_t control_word = attn_fp_control_reset();
    ptrdiff_t n_tokens = c->p->n_batch * c->p->n_rows;
    ptrdiff_t first = index * ATTN_TASK_ROWS, end = first + ATTN_TASK_ROWS;

    for (ptrdiff_t token = first; token < end && token < n_tokens; token++) {
        run_token(c, token, c->workspaces[worker]);
    }
    attn_fp_control_restore(control_word);
}

int
attn_heads(const attn_heads_problem *p, const attn_tier *tier, int n_threads,
           attn_poll poll, void *poll_context)
{
    attn_control control = {.poll = poll, .poll_context = poll_context};
    void *workspaces[ATTN_MAX_THREADS];
    bool wide = p->dtype == ATTN_F64;
    heads_call c = {.p = p,
                    .kernel = wide ? tier->f64 : tier->f32,
                    .run = wide ? attn_run_heads_f64 : attn_run_heads_f32,
                    .workspaces = workspaces};
    ptrdiff_t n_tokens = p->n_batch * p->n_rows;
    ptrdiff_t n_tasks = (n_tokens + ATTN_TASK_ROWS - 1) / ATTN_TASK_ROWS;

    n_threads = attn_useful_threads(
        (double)n_tokens * (double)p->n_heads * (double)p->n_columns * 20, n_threads);
    n_threads = n_tasks < n_threads ? (int)n_tasks : n_threads;
    if (n_tasks == 0) {
        return 0;
    }
    int n = attn_acquire_workspaces(workspaces, n_threads,
                                    (size_t)p->n_columns *
                                        (sizeof(double) + sizeof(uint16_t)));
    if (n == 0) {
        return -1;
    }
    attn_parallel_for(n_tasks, n, run_heads_task, &c, &control);
    while (n > 0) {
        attn_workspace_release(workspaces[--n]);
    }
    return 0;
}

/* The caller's poll, and whether it has said stop. */
typedef struct {
    attn_poll poll;
    void *context;
    bool stopped;
} watch;

static bool
poll_watch(void *context)
{
    watch *w = context;

    w->stopped = w->poll(w->context);
    return w->stopped;
}

int
attn_layer(const attn_layer_problem *l, const attn_tier *tier, int n_threads,
           attn_poll poll, void *poll_context)
{
    watch w = {poll, poll_context, false};
    int status = 0;

    poll = poll == NULL ? NULL : poll_watch;
    for (int i = 0; i < 3 && status == 0 && !w.stopped; i++) {
        if (l->products[i] != NULL) {
            status = attn_linear(l->products[i], tier, n_threads, poll, &w);
        }
    }
    for (int i = 0; i < 3 && status == 0 && !w.stopped; i++) {
        if (l->heads[i] != NULL) {
            status = attn_heads(l->heads[i], tier, n_threads, poll, &w);
        }
    }
    if (l->attention != NULL && status == 0 && !w.stopped) {
        status = attn_attention(l->attention, tier, n_threads, poll, &w);
    }
    if (l->output != NULL && status == 0 && !w.stopped) {
        status = attn_linear(l->output, tier, n_threads, poll, &w);
    }
    return status;
}
