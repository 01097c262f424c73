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

/* Columns of a task. In row form as many as make the same number of outputs for any number
 * of rows, for W is read in lines that long; less if each thread is to have some. */
static ptrdiff_t
columns_of_task(const attn_linear_problem *l, int n_threads)
{
    ptrdiff_t columns = ATTN_FEW_ROWS_COLUMNS;
    ptrdiff_t share = (l->n_out / n_threads + 64) / 64 * 64;

    if (l->n_batch * l->n_rows > ATTN_FEW_ROWS) {
        return ATTN_LINEAR_COLUMNS;
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
