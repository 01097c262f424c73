/* The driver of norms. */
#include "core/norm.h"

#include "core/tiers.h"
#include "core/workspace.h"

#include <assert.h>

enum { TASK_COLUMNS = 256 };

typedef struct {
    const attn_norm_problem *p;
    const attn_kernel *kernel;
} job;

static void
run_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;

    (void)worker;
    j->kernel->norm.run(j->p, index * ATTN_TASK_ROWS,
                        attn_part_of(j->p->n_rows, ATTN_TASK_ROWS, index));
}

double
attn_norm_work(const attn_norm_problem *p)
{
    return (double)p->n_rows * (double)p->n_columns * ATTN_WORK_OF_A_NUMBER;
}

void
attn_normalize(const attn_norm_problem *p, attn_call *call)
{
    job j = {p, attn_kernel_for(call->tier, p->arithmetic, false)};
    attn_tasks tasks = {.n = attn_norm_blocks(p),
                        .work = attn_norm_work(p),
                        .run = run_task,
                        .context = &j};

    assert(p->n_rows >= 0 && p->n_columns >= 0 && p->eps >= 0);
    assert(p->n_rows == 0 || p->n_columns == 0 || p->weight != NULL);
    (void)attn_run_tasks(&tasks, call);
}

/* ---- Backwards ---------------------------------------------------------------------- */

typedef struct {
    const attn_norm_vjp_problem *g;
    const attn_norm_kernel *kernel;
} vjp_job;

static void
run_block(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const vjp_job *j = context;

    j->kernel->run_vjp(j->g, index, worker->workspace);
}

static void
run_columns(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const vjp_job *j = context;

    (void)worker;
    j->kernel->add_blocks(j->g, index * TASK_COLUMNS,
                          attn_part_of(j->g->norm.n_columns, TASK_COLUMNS, index));
}

static int
run_vjp_steps(const attn_norm_vjp_problem *g, attn_call *call)
{
    const attn_norm_problem *p = &g->norm;
    vjp_job j = {g, &attn_kernel_for(call->tier, p->arithmetic, false)->norm};
    ptrdiff_t n_blocks = attn_norm_blocks(p);
    attn_tasks blocks = {.n = n_blocks,
                         .work = 2 * attn_norm_work(p),
                         .workspace_size = j.kernel->vjp_workspace_size(g),
                         .run = run_block,
                         .context = &j};
    attn_tasks columns = {.n = attn_divide_up(p->n_columns, TASK_COLUMNS),
                          .work = 2 * (double)n_blocks * (double)p->n_columns,
                          .run = run_columns,
                          .context = &j};

    return attn_run_tasks(&blocks, call) < 0 ? -1 : attn_run_tasks(&columns, call);
}

int
attn_normalize_vjp(const attn_norm_vjp_problem *problem, attn_call *call)
{
    attn_norm_vjp_problem g = *problem;
    ptrdiff_t width = (g.norm.n_columns + ATTN_NORM_CHAINS - 1) & -ATTN_NORM_CHAINS;
    ptrdiff_t n = 2 * attn_norm_blocks(&g.norm) * width;
    int status;

    assert(g.norm.residual == NULL && g.norm.eps >= 0);
    g.sums = attn_workspace_acquire(
        (size_t)(n > 0 ? n * attn_storage_of(g.norm.arithmetic)->bytes : 1));
    status = g.sums == NULL ? -1 : run_vjp_steps(&g, call);
    attn_workspace_release(g.sums);
    return status;
}
