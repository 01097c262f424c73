/* The driver of linear products: splits rows and columns into tasks. */
#include "core/linear.h"

#include "core/tuning.h"
#include "core/tiers.h"
#include "core/workspace.h"

#include <assert.h>
#include <math.h>

/* How many numbers of tasks for a thread are tried, from the least on. More tasks let many threads
 * share the work evenly, also where some begin late; two do so with the least. */
enum { N_TRIED = 6 };

/* Rows for which a thread reads a matrix of integers that others read, too. */
enum { OWN_ROWS = 8 };

typedef struct {
    attn_linear_problem *l;
    const attn_linear_kernel *kernel;
    const attn_tier *tier;
    int n_products;                  /* that are in a list with this one */
    ptrdiff_t n_row_tasks, row_unit; /* each but the last has whole units */
    ptrdiff_t n_columns;             /* of a task */
    ptrdiff_t n_column_tasks;        /* of the same rows */
    ptrdiff_t n_tasks;
} job;

static ptrdiff_t
rows_of(const attn_linear_problem *l)
{
    return l->batch.n * l->n_rows;
}

/* The first row of a row task. The one behind the last begins where rows end. */
static ptrdiff_t
first_row(const job *j, ptrdiff_t row_task)
{
    ptrdiff_t n = rows_of(j->l);
    ptrdiff_t row =
        attn_divide_up(n, j->row_unit) * row_task / j->n_row_tasks * j->row_unit;

    return row < n ? row : n;
}

static attn_linear_task
task_at(const job *j, ptrdiff_t index)
{
    ptrdiff_t row_task = index / j->n_column_tasks;
    ptrdiff_t row = first_row(j, row_task);
    ptrdiff_t column_task = index % j->n_column_tasks;

    return (attn_linear_task){.first_row = row,
                              .n_rows = first_row(j, row_task + 1) - row,
                              .first_column = column_task * j->n_columns,
                              .n_columns =
                                  attn_part_of(j->l->n_out, j->n_columns, column_task)};
}

static void
run_job(const job *j, const attn_linear_task *task, bool again,
        const attn_worker *worker)
{
    if (j->l->quantized != NULL) {
        j->tier->integer->run(j->l, task, again, j->kernel, j->tier->integer_unit,
                              worker);
    } else {
        j->kernel->run(j->l, task, worker);
    }
}

/* Do two products have the same rows, which are rounded alike? */
static bool
share_rows(const attn_linear_problem *a, const attn_linear_problem *b)
{
    const attn_quantized *p = a->quantized, *q = b->quantized;
    const attn_array *x = &a->input, *y = &b->input;

    return p != NULL && q != NULL && x->data == y->data && x->dtype == y->dtype &&
           x->row_stride == y->row_stride && x->column_stride == y->column_stride &&
           x->batch_stride[0] == y->batch_stride[0] && a->n_in == b->n_in &&
           a->n_rows == b->n_rows && p->rounds_rows == q->rounds_rows &&
           p->bits == q->bits && p->zero == q->zero && p->group == q->group &&
           (p->values == NULL) == (q->values == NULL) &&
           (p->minimum.fine == NULL) == (q->minimum.fine == NULL);
}

/* Have n products the same rows and sizes, and so the same tasks, which threads share evenly? Then
 * the tasks of the same rows are one, which rounds these once. */
static bool
share_tasks(const job *jobs, int n, int n_threads)
{
    for (int i = 1; i < n; i++) {
        if (!share_rows(jobs->l, jobs[i].l) || jobs[i].l->n_out != jobs->l->n_out) {
            return false;
        }
    }
    return n > 1 && jobs->n_tasks % n_threads == 0;
}

/* Each of the first jobs' tasks is followed by the same one of n_after jobs, which are `step` jobs
 * apart. */
typedef struct {
    const job *jobs;
    ptrdiff_t step, n_after;
} job_list;

static void
run_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job_list *list = context;
    const job *j = list->jobs;

    for (; index >= j->n_tasks; j++) {
        index -= j->n_tasks;
    }
    attn_linear_task task = task_at(j, index);
    run_job(j, &task, false, worker);
    for (ptrdiff_t i = 1; i <= list->n_after; i++) {
        const job *then = j + i * list->step;
        run_job(then, &task, share_rows(j->l, then->l), worker);
    }
}

/* Is W read again rather than rows rounded again? One of 8 bits is multiplied as it lies, and a
 * small one is in a cache that is near all threads. */
static bool
reads_again(const attn_linear_problem *l)
{
    enum { SMALL = 4 << 20 }; /* bytes */
    return l->quantized != NULL && l->quantized->bits == 8 &&
           l->n_in <= SMALL / l->n_out;
}

/* Is the product a matrix unit's? */
static bool
has_unit(const job *j)
{
    const attn_quantized *q = j->l->quantized;

    return q != NULL ? j->tier->integer_unit != NULL : !j->kernel->has_row_form;
}

/* What a task takes besides its products, in products of a row and a column: for each column of W
 * that it loads, for each row of x, and for itself. And how much of a task the last threads end
 * later than the rest: some of many begin later, or are slower, than others. */
typedef struct {
    double column, row, task, late;
} overhead;

static overhead
overhead_of(const job *j, int n_threads)
{
    const attn_linear_problem *l = j->l;
    bool quantized = l->quantized != NULL;
    overhead o = {.column = reads_again(l) ? 0 : 8, .row = quantized ? 64 : 8};

    if (n_threads <= 2) {
        return o;
    }
    o.task = ATTN_WORK_OF_A_TASK / (double)(l->n_in + 1);
    o.late = (quantized || has_unit(j) ? 0.25 : 0.5) / j->n_products;
    if (has_unit(j)) {
        o.column = 16;
        o.row = quantized ? 192 : 96;
        o.task *= 4;
    }
    return o;
}

/* The time of n_each tasks of so many rows and columns. */
static double
time_of(const overhead *o, ptrdiff_t n_each, ptrdiff_t n_rows, ptrdiff_t n_columns)
{
    return ((double)n_rows + (double)n_each * o->column) *
               ((double)n_columns + o->row) +
           (double)n_each * o->task;
}

/* When threads have ended all tasks. */
static double
time_of_threads(const job *j, const overhead *o, int n_threads)
{
    ptrdiff_t n = rows_of(j->l), n_units = attn_divide_up(n, j->row_unit);
    ptrdiff_t n_column_tasks = attn_divide_up(j->l->n_out, j->n_columns);
    ptrdiff_t n_tasks = j->n_row_tasks * n_column_tasks;
    ptrdiff_t n_each = attn_divide_up(n_tasks, n_threads);
    ptrdiff_t longest = attn_divide_up(n_units, j->n_row_tasks);
    /* If each thread has n_each tasks, longer and shorter ones even out; else one may have n_each
     * of the longest. */
    ptrdiff_t units = n_tasks == n_each * n_threads
                          ? attn_divide_up(n_units * n_column_tasks, n_threads)
                          : n_each * longest;
    ptrdiff_t n_rows = units * j->row_unit;
    ptrdiff_t limit = n * attn_divide_up(n_column_tasks, n_threads);
    double time = time_of(o, n_each, n_rows < limit ? n_rows : limit, j->n_columns);

    return time + o->late * time_of(o, 1, longest * j->row_unit, j->n_columns);
}

/* Splits columns into tasks of n_panels panels, and rows into parts, until each thread has n_each
 * tasks or a task has no more rows than the kernel computes at a time. */
static void
split_tiles(job *j, int n_threads, ptrdiff_t n_panels, ptrdiff_t n_each)
{
    const attn_linear_problem *l = j->l;
    ptrdiff_t n_units = attn_divide_up(rows_of(l), j->row_unit);

    j->n_columns = n_panels * ATTN_PANEL_COLUMNS;
    if (j->n_columns > l->n_out) {
        j->n_columns = l->n_out;
    }
    j->n_row_tasks = n_each * n_threads / attn_divide_up(l->n_out, j->n_columns);
    if (j->n_row_tasks > n_units) {
        j->n_row_tasks = n_units;
    }
}

/* Splits so that the threads are done soonest, all at once. */
static void
share_tiles(job *j, int n_threads)
{
    const attn_linear_problem *l = j->l;
    ptrdiff_t most = l->quantized != NULL ? ATTN_INTEGER_ROWS
                     : l->many_rows       ? j->kernel->many_rows(l)
                                          : ATTN_TASK_ROWS;
    ptrdiff_t n_row_tasks = attn_divide_up(rows_of(l), most);
    ptrdiff_t n_panels = attn_divide_up(l->n_out, ATTN_PANEL_COLUMNS);
    overhead o = overhead_of(j, n_threads);
    int n_tried = n_threads > 2 ? N_TRIED : 1;
    double least = INFINITY;

    j->row_unit = l->many_rows     ? j->kernel->many_rows_unit
                  : reads_again(l) ? OWN_ROWS / 2
                                   : ATTN_TILE_ROWS;
    job best = *j;
    for (ptrdiff_t n = 1, columns = 0; n <= n_tried * n_threads && n <= n_panels; n++) {
        ptrdiff_t n_each = attn_divide_up(n_row_tasks * n, n_threads);
        if (attn_divide_up(n_panels, n) == columns) {
            continue;
        }
        columns = attn_divide_up(n_panels, n);
        for (ptrdiff_t i = 0; i < n_tried; i++) {
            split_tiles(j, n_threads, columns, n_each + i);
            double time = time_of_threads(j, &o, n_threads);
            if (time < least * 63 / 64) { /* else rather fewer tasks */
                least = time;
                best = *j;
            }
        }
    }
    *j = best;
}

/* Columns of a task, at most `most`, with which many threads are done soonest. Each task takes
 * `task` multiplications besides. */
static ptrdiff_t
even_columns(const attn_linear_problem *l, int n_threads, ptrdiff_t most,
             ptrdiff_t unit, double task)
{
    double column = attn_linear_work(l) / (double)l->n_out, least = INFINITY;
    ptrdiff_t best = most;

    for (ptrdiff_t n = most; n >= unit; n -= unit) {
        ptrdiff_t n_each = attn_divide_up(attn_divide_up(l->n_out, n), n_threads);
        double time = ((double)n_each + 0.5) * ((double)n * column + task);
        if (time < least * 63 / 64) { /* else rather fewer tasks */
            least = time;
            best = n;
        }
    }
    return best;
}

/* Splits columns only. Tasks of fewer rows have more columns, for the same number of outputs, but
 * every thread gets some. Tasks with a quantised matrix have more columns too, because each rounds
 * its rows, which takes as long as products with 64 columns. */
static void
share_columns(job *j, int n_threads)
{
    enum { ROUNDED_COLUMNS = 2048 };
    const double round_row = 64;
    const attn_linear_problem *l = j->l;
    ptrdiff_t unit = l->packed ? ATTN_PANEL_COLUMNS : 64;
    ptrdiff_t columns = ATTN_FEW_ROWS_COLUMNS;
    ptrdiff_t share = (l->n_out / n_threads + unit) / unit * unit;
    double task = ATTN_WORK_OF_A_TASK;

    for (ptrdiff_t n = ATTN_FEW_ROWS / 2; n >= rows_of(l); n /= 2) {
        columns *= 2;
    }
    for (ptrdiff_t n = ATTN_FEW_ROWS; n < rows_of(l); n *= 2) {
        columns /= 2;
    }
    if (l->quantized != NULL) {
        columns = columns < ROUNDED_COLUMNS ? ROUNDED_COLUMNS : columns;
        task += round_row * (double)rows_of(l) * (double)l->n_in;
    }
    columns = columns / unit * unit;
    columns = share < columns ? share : columns;
    j->n_row_tasks = 1;
    j->row_unit = rows_of(l);
    j->n_columns =
        n_threads > 2 ? even_columns(l, n_threads, columns, unit, task) : columns;
}

double
attn_linear_work(const attn_linear_problem *l)
{
    double weights = (double)l->n_in * (double)l->n_out;
    double bytes = l->quantized != NULL
                       ? l->quantized->bits / 8.0
                       : (double)attn_storage_of(l->weight.dtype)->bytes;

    return weights *
           ((double)l->batch.n * (double)l->n_rows + bytes * ATTN_WORK_OF_A_BYTE);
}

/* Splits one of n products into tasks; returns how many bytes of workspace each needs. */
static size_t
split(attn_linear_problem *l, int n, int n_threads, const attn_call *call, job *j)
{
    bool all_bf16 = l->weight.dtype == ATTN_BF16 && l->quantized == NULL &&
                    (l->input.dtype == ATTN_BF16 ||
                     (l->input.dtype == ATTN_F32 && l->rounds_input));

    assert(l->batch.n_axes <= 1 && l->n_in >= 0 && l->n_out >= 0);
    assert(l->arithmetic == attn_storage_of(l->output.dtype)->arithmetic);
    assert(l->quantized == NULL || (l->packed && l->arithmetic == ATTN_F32));
    *j = (job){.l = l,
               .kernel = &attn_kernel_for(call->tier, l->arithmetic, all_bf16)->linear,
               .tier = call->tier,
               .n_products = n};
    l->many_rows = l->quantized == NULL && j->kernel->many_rows != NULL &&
                   attn_get_tuning(ATTN_TUNE_MANY_ROWS);
    l->few_rows = !l->packed                    ? ATTN_FEW_ROWS
                  : !l->many_rows               ? ATTN_PACKED_ROWS
                  : l->weight.dtype == ATTN_F16 ? ATTN_NARROW_ROWS
                                                : j->kernel->narrow_rows;
    if (rows_of(l) == 0 || l->n_out == 0) {
        return 0;
    }
    bool in_rows = j->kernel->has_row_form || rows_of(l) <= ATTN_FEW_ROWS;
    bool own_rows =
        reads_again(l) && n_threads > 1 && rows_of(l) >= OWN_ROWS * n_threads;
    if (in_rows && attn_linear_in_rows(l) && !own_rows) {
        share_columns(j, n_threads);
    } else {
        share_tiles(j, n_threads);
    }
    j->n_column_tasks = attn_divide_up(l->n_out, j->n_columns);
    j->n_tasks = j->n_row_tasks * j->n_column_tasks;
    return l->quantized != NULL ? call->tier->integer->workspace_size(l)
                                : j->kernel->workspace_size(l);
}

/* Among how many threads each of n products is split: so many are shared as they are. */
static int
threads_of_each(int n, int n_threads)
{
    enum { OF_A_THREAD = 4 };
    return n >= OF_A_THREAD * n_threads ? 1 : n_threads;
}

int
attn_linears(int n, attn_linear_problem *const *problems,
             attn_linear_problem *const *then, attn_call *call)
{
    job few[ATTN_FEW_LINEARS], *jobs = few;
    int n_jobs = then == NULL ? n : 2 * n;
    attn_tasks tasks = {.run = run_task};

    if (n_jobs > ATTN_FEW_LINEARS) {
        jobs = attn_workspace_acquire((size_t)n_jobs * sizeof *jobs);
        if (jobs == NULL) {
            return -1;
        }
    }
    for (int i = 0; i < n_jobs; i++) {
        tasks.work += attn_linear_work(i < n ? problems[i] : then[i - n]);
    }
    int n_threads = attn_useful_threads(tasks.work, call);
    for (int i = 0; i < n_jobs; i++) {
        size_t size = split(i < n ? problems[i] : then[i - n], n,
                            threads_of_each(n, n_threads), call, &jobs[i]);
        tasks.workspace_size =
            size > tasks.workspace_size ? size : tasks.workspace_size;
        tasks.n += i < n ? jobs[i].n_tasks : 0;
    }
    job_list list = {jobs, n, then != NULL};
    if (then == NULL && share_tasks(jobs, n, n_threads)) {
        list = (job_list){jobs, 1, n - 1};
        tasks.n = jobs->n_tasks;
    }
    tasks.context = &list;
    int status = attn_run_tasks(&tasks, call);
    if (jobs != few) {
        attn_workspace_release(jobs);
    }
    return status;
}

int
attn_linear(attn_linear_problem *l, attn_call *call)
{
    return attn_linears(1, &l, NULL, call);
}

/* A product whose rows are another one's results, and where a thread has these. */
typedef struct {
    job first, last;
    size_t at;
} job_pair;

static char *
before(char *at, ptrdiff_t n_bytes)
{
    return (char *)((uintptr_t)at - (uintptr_t)n_bytes);
}

/* The first product's rows of a task lie in the workspace. */
static void
run_pair(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job_pair *p = context;
    job first = p->first, last = p->last;
    attn_linear_problem a = *first.l, b = *last.l;
    attn_linear_task task = task_at(&first, index), then = task_at(&last, index);

    a.output.data =
        before((char *)worker->workspace + p->at, task.first_row * a.output.row_stride);
    b.input.data = a.output.data;
    first.l = &a;
    last.l = &b;
    run_job(&first, &task, false, worker);
    run_job(&last, &then, false, worker);
}

/* Are a product's rows rounded to bytes, for a matrix unit, and all columns in each task? */
static bool
has_whole_rows(const job *j)
{
    const attn_quantized *q = j->l->quantized;

    return q != NULL && q->rounds_rows && has_unit(j) && j->n_tasks > 0 &&
           j->n_tasks == j->n_row_tasks;
}

/* The bytes of the first results of a task's rows, if they stay in the cache until they are
 * multiplied by the same task; else 0. */
static size_t
bytes_between(const job *first, const job *last)
{
    enum { MOST_BYTES = 1 << 20 };
    const attn_linear_problem *l = first->l;
    ptrdiff_t row = l->n_out * attn_storage_of(l->output.dtype)->bytes;

    if (!has_whole_rows(first) || !has_whole_rows(last) ||
        last->n_tasks != first->n_tasks || last->row_unit != first->row_unit) {
        return 0;
    }
    ptrdiff_t n_units = attn_divide_up(rows_of(l), first->row_unit);
    ptrdiff_t n_rows = attn_divide_up(n_units, first->n_tasks) * first->row_unit;
    return n_rows > MOST_BYTES / row ? 0 : (size_t)(n_rows * row);
}

int
attn_linear_pair(attn_linear_problem *first, attn_linear_problem *last, attn_call *call)
{
    job_pair p;
    attn_tasks tasks = {.run = run_pair, .context = &p};

    tasks.work = attn_linear_work(first) + attn_linear_work(last);
    int n_threads = attn_useful_threads(tasks.work, call);
    size_t size = split(first, 1, n_threads, call, &p.first);
    size_t other = split(last, 1, n_threads, call, &p.last);
    size_t between = bytes_between(&p.first, &p.last);
    if (between == 0) {
        int status = attn_linear(first, call);
        return status < 0 ? status : attn_linear(last, call);
    }
    p.at = ((other > size ? other : size) + ATTN_ALIGNMENT - 1) / ATTN_ALIGNMENT *
           ATTN_ALIGNMENT;
    tasks.workspace_size = p.at + between;
    tasks.n = p.first.n_tasks;
    return attn_run_tasks(&tasks, call);
}

typedef struct {
    job first;
    attn_linear_steps steps;
} jobs_in_steps;

static void
run_task_of_each(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const jobs_in_steps *jobs = context;
    job j = jobs->first;
    attn_linear_problem l = *j.l;
    ptrdiff_t which = index / j.n_tasks;

    l.input.data += which * jobs->steps.input;
    l.weight.data += which * jobs->steps.weight;
    l.output.data += which * jobs->steps.output;
    j.l = &l;
    attn_linear_task task = task_at(&j, index % j.n_tasks);
    run_job(&j, &task, false, worker);
}

int
attn_linear_each(ptrdiff_t n, attn_linear_problem *l, const attn_linear_steps *steps,
                 attn_call *call)
{
    jobs_in_steps jobs = {.steps = *steps};
    attn_tasks tasks = {.run = run_task_of_each, .context = &jobs};

    assert(l->bias.data == NULL && l->times.data == NULL && l->residual.data == NULL);
    tasks.work = (double)n * attn_linear_work(l);
    int n_threads = attn_useful_threads(tasks.work, call);
    tasks.workspace_size =
        split(l, 1, n < n_threads ? n_threads : 1, call, &jobs.first);
    tasks.n = n * jobs.first.n_tasks;
    return attn_run_tasks(&tasks, call);
}
