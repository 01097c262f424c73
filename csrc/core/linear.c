/* The driver of linear products: splits rows and columns into tasks. */
#include "core/linear.h"

#include "core/tiers.h"

#include <assert.h>

typedef struct {
    const attn_linear_problem *l;
    const attn_kernel *kernel;
    ptrdiff_t n_columns;      /* of a task */
    ptrdiff_t n_column_tasks; /* of the same rows */
} job;

static ptrdiff_t
rows_of(const attn_linear_problem *l)
{
    return l->batch.n * l->n_rows;
}

static void
run_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;
    ptrdiff_t row = index / j->n_column_tasks * ATTN_TASK_ROWS;
    ptrdiff_t column = index % j->n_column_tasks * j->n_columns;
    ptrdiff_t rows_left = rows_of(j->l) - row;
    ptrdiff_t columns_left = j->l->n_out - column;
    attn_linear_task task = {
        .first_row = row,
        .n_rows = rows_left < ATTN_TASK_ROWS ? rows_left : ATTN_TASK_ROWS,
        .first_column = column,
        .n_columns = columns_left < j->n_columns ? columns_left : j->n_columns};

    j->kernel->linear.run(j->l, &task, worker);
}

/* Columns of a task in tile form: all, unless two tasks for each thread would not come out. */
static ptrdiff_t
columns_of_tiles(const attn_linear_problem *l, int n_threads)
{
    ptrdiff_t n_row_tasks = (rows_of(l) + ATTN_TASK_ROWS - 1) / ATTN_TASK_ROWS;
    ptrdiff_t n_wanted = (2 * n_threads + n_row_tasks - 1) / n_row_tasks;
    ptrdiff_t n_panels =
        (l->n_out / n_wanted + ATTN_PANEL_COLUMNS - 1) / ATTN_PANEL_COLUMNS;
    ptrdiff_t share = n_panels * ATTN_PANEL_COLUMNS;

    return n_wanted == 1 || share == 0 ? l->n_out : share;
}

/* Columns of a task. In row form as many as make the same number of outputs for any number
 * of rows, for W is read in lines that long; less if each thread is to have some. */
static ptrdiff_t
columns_of_task(const attn_linear_problem *l, int n_threads)
{
    ptrdiff_t columns = ATTN_FEW_ROWS_COLUMNS;
    ptrdiff_t share = (l->n_out / n_threads + 64) / 64 * 64;

    if (rows_of(l) > ATTN_FEW_ROWS) {
        return columns_of_tiles(l, n_threads);
    }
    for (ptrdiff_t n = ATTN_FEW_ROWS / 2; n >= rows_of(l); n /= 2) {
        columns *= 2;
    }
    return share < columns ? share : columns;
}

double
attn_linear_work(const attn_linear_problem *l)
{
    return (double)l->batch.n * (double)l->n_rows * (double)l->n_in * (double)l->n_out;
}

int
attn_linear(const attn_linear_problem *l, attn_call *call)
{
    bool all_bf16 = l->weight.dtype == ATTN_BF16 &&
                    (l->input.dtype == ATTN_BF16 ||
                     (l->input.dtype == ATTN_F32 && l->rounds_input));
    job j = {.l = l, .kernel = attn_kernel_for(call->tier, l->arithmetic, all_bf16)};
    attn_tasks tasks = {.work = attn_linear_work(l), .run = run_task, .context = &j};

    assert(l->batch.n_axes <= 1 && l->n_in >= 0 && l->n_out >= 0);
    assert(l->arithmetic == attn_storage_of(l->output.dtype)->arithmetic);
    if (rows_of(l) == 0 || l->n_out == 0) {
        return 0;
    }
    j.n_columns = columns_of_task(l, attn_useful_threads(tasks.work, call->n_threads));
    j.n_column_tasks = (l->n_out + j.n_columns - 1) / j.n_columns;
    tasks.n = (rows_of(l) + ATTN_TASK_ROWS - 1) / ATTN_TASK_ROWS * j.n_column_tasks;
    tasks.workspace_size = j.kernel->linear.workspace_size(l);
    return attn_run_tasks(&tasks, call);
}
