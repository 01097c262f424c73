/* The driver of norms. */
#include "core/norm.h"

#include "core/tiers.h"

#include <assert.h>

enum { WORK_OF_A_NUMBER = 20 };

typedef struct {
    const attn_norm_problem *p;
    const attn_kernel *kernel;
} job;

static void
run_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;
    ptrdiff_t row = index * ATTN_TASK_ROWS, left = j->p->n_rows - row;

    (void)worker;
    j->kernel->norm.run(j->p, row, left < ATTN_TASK_ROWS ? left : ATTN_TASK_ROWS);
}

double
attn_norm_work(const attn_norm_problem *p)
{
    return (double)p->n_rows * (double)p->n_columns * WORK_OF_A_NUMBER;
}

void
attn_normalize(const attn_norm_problem *p, attn_call *call)
{
    job j = {p, attn_kernel_for(call->tier, p->arithmetic, false)};
    attn_tasks tasks = {.n = (p->n_rows + ATTN_TASK_ROWS - 1) / ATTN_TASK_ROWS,
                        .work = attn_norm_work(p),
                        .run = run_task,
                        .context = &j};

    assert(p->n_rows >= 0 && p->n_columns >= 0 && p->eps >= 0);
    assert(p->n_rows == 0 || p->n_columns == 0 || p->weight != NULL);
    (void)attn_run_tasks(&tasks, call);
}
