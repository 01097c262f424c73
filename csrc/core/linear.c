/* The driver of linear products: splits rows and columns into tasks. */
#include "core/linear.h"

#include "core/habits.h"
#include "core/tiers.h"

#include <assert.h>

typedef struct {
    attn_linear_problem l;
    const attn_linear_kernel *kernel;
    ptrdiff_t n_rows, n_columns; /* of a task */
    ptrdiff_t n_column_tasks;    /* of the same rows */
    ptrdiff_t n_tasks;
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

    for (; index >= j->n_tasks; j++) {
        index -= j->n_tasks;
    }
    ptrdiff_t row = index / j->n_column_tasks * j->n_rows;
    ptrdiff_t column = index % j->n_column_tasks * j->n_columns;
    ptrdiff_t rows_left = rows_of(&j->l) - row;
    ptrdiff_t columns_left = j->l.n_out - column;
    attn_linear_task task = {.first_row = row,
                             .n_rows = rows_left < j->n_rows ? rows_left : j->n_rows,
                             .first_column = column,
                             .n_columns = columns_left < j->n_columns ? columns_left
                                                                      : j->n_columns};

    j->kernel->run(&j->l, &task, worker);
}

/* Whether tasks of so many of n rows are equally long, and as many for each thread. */
static bool
is_even(ptrdiff_t n, ptrdiff_t n_rows, int n_threads)
{
    return n <= n_rows || (n % n_rows == 0 && n / n_rows % n_threads == 0);
}

/* Rows of a task. Those of a wide one share W, packed: as many as there may be, unless not
 * all threads would have some. Where only columns come out even, they are split instead. */
static ptrdiff_t
rows_of_task(const job *j, int n_threads)
{
    ptrdiff_t n = rows_of(&j->l);
    ptrdiff_t share = (n + n_threads - 1) / n_threads;
    ptrdiff_t n_rows = (share + ATTN_TASK_ROWS - 1) / ATTN_TASK_ROWS * ATTN_TASK_ROWS;
    ptrdiff_t n_panels = (j->l.n_out + ATTN_PANEL_COLUMNS - 1) / ATTN_PANEL_COLUMNS;

    if (!j->l.wide) {
        return ATTN_TASK_ROWS;
    }
    ptrdiff_t most = j->kernel->wide_rows(&j->l);
    if (n <= most && !is_even(n, n_rows, n_threads) && n_panels % n_threads == 0) {
        return n;
    }
    return n_rows < most ? n_rows : most;
}

/* Columns of a task in tile form: all, unless fewer tasks than threads would come out, or
 * than twice as many where they are not equally long. */
static ptrdiff_t
columns_of_tiles(const attn_linear_problem *l, ptrdiff_t n_rows, int n_threads)
{
    ptrdiff_t n_row_tasks = (rows_of(l) + n_rows - 1) / n_rows;
    bool one_each = n_threads == 1 || is_even(rows_of(l), n_rows, n_threads);
    ptrdiff_t n_tasks = one_each ? n_threads : 2 * n_threads;
    ptrdiff_t n_wanted = (n_tasks + n_row_tasks - 1) / n_row_tasks;
    ptrdiff_t n_panels =
        (l->n_out / n_wanted + ATTN_PANEL_COLUMNS - 1) / ATTN_PANEL_COLUMNS;
    ptrdiff_t share = n_panels * ATTN_PANEL_COLUMNS;

    return n_wanted == 1 || share == 0 ? l->n_out : share;
}

/* Columns of a task. In row form as many as make the same number of outputs for any number
 * of rows, for W is read in lines that long; less if each thread is to have some. */
static ptrdiff_t
columns_of_task(const job *j, ptrdiff_t n_rows, int n_threads)
{
    const attn_linear_problem *l = &j->l;
    bool in_rows = j->kernel->has_row_form || rows_of(l) <= ATTN_FEW_ROWS;
    ptrdiff_t unit = l->packed ? ATTN_PANEL_COLUMNS : 64;
    ptrdiff_t columns = ATTN_FEW_ROWS_COLUMNS;
    ptrdiff_t share = (l->n_out / n_threads + unit) / unit * unit;

    if (!in_rows || !attn_linear_in_rows(l)) {
        return columns_of_tiles(l, n_rows, n_threads);
    }
    for (ptrdiff_t n = ATTN_FEW_ROWS / 2; n >= rows_of(l); n /= 2) {
        columns *= 2;
    }
    for (ptrdiff_t n = ATTN_FEW_ROWS; n < rows_of(l); n *= 2) {
        columns /= 2;
    }
    columns = columns / unit * unit;
    return share < columns ? share : columns;
}

double
attn_linear_work(const attn_linear_problem *l)
{
    double weights = (double)l->n_in * (double)l->n_out;
    ptrdiff_t bytes = attn_storage_of(l->weight.dtype)->bytes;

    return weights * ((double)l->batch.n * (double)l->n_rows +
                      (double)bytes * ATTN_WORK_OF_A_BYTE);
}

/* Splits a product into tasks; how many bytes of workspace each takes. */
static size_t
split(const attn_linear_problem *l, int n_threads, const attn_call *call, job *j)
{
    bool all_bf16 = l->weight.dtype == ATTN_BF16 &&
                    (l->input.dtype == ATTN_BF16 ||
                     (l->input.dtype == ATTN_F32 && l->rounds_input));

    assert(l->batch.n_axes <= 1 && l->n_in >= 0 && l->n_out >= 0);
    assert(l->arithmetic == attn_storage_of(l->output.dtype)->arithmetic);
    *j = (job){.l = *l,
               .kernel = &attn_kernel_for(call->tier, l->arithmetic, all_bf16)->linear};
    j->l.wide = j->kernel->wide_rows != NULL && attn_has_habit(ATTN_WIDE_TASKS);
    if (rows_of(l) == 0 || l->n_out == 0) {
        return 0;
    }
    j->n_rows = rows_of_task(j, n_threads);
    j->n_columns = columns_of_task(j, j->n_rows, n_threads);
    j->n_column_tasks = (l->n_out + j->n_columns - 1) / j->n_columns;
    j->n_tasks = (rows_of(l) + j->n_rows - 1) / j->n_rows * j->n_column_tasks;
    return j->kernel->workspace_size(&j->l);
}

int
attn_linears(int n, const attn_linear_problem *const *problems, attn_call *call)
{
    job jobs[ATTN_MAX_LINEARS];
    attn_tasks tasks = {.run = run_task, .context = jobs};

    assert(n <= ATTN_MAX_LINEARS);
    for (int i = 0; i < n; i++) {
        tasks.work += attn_linear_work(problems[i]);
    }
    int n_threads = attn_useful_threads(tasks.work, call->n_threads);
    for (int i = 0; i < n; i++) {
        size_t size = split(problems[i], n_threads, call, &jobs[i]);
        tasks.workspace_size =
            size > tasks.workspace_size ? size : tasks.workspace_size;
        tasks.n += jobs[i].n_tasks;
    }
    return attn_run_tasks(&tasks, call);
}

int
attn_linear(const attn_linear_problem *l, attn_call *call)
{
    return attn_linears(1, &l, call);
}
