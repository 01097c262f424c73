/* The driver of activations. */
#include "core/activate.h"

#include "core/tiers.h"

#include <assert.h>

enum { TASK_NUMBERS = 1 << 14 };

typedef struct {
    const attn_activate_problem *p;
    const attn_kernel *kernel;
} job;

static void
run_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;

    (void)worker;
    j->kernel->activate.run(j->p, index * TASK_NUMBERS,
                            attn_part_of(j->p->n, TASK_NUMBERS, index));
}

double
attn_activate_work(const attn_activate_problem *p)
{
    return (double)p->n * ATTN_WORK_OF_A_NUMBER;
}

void
attn_activate(const attn_activate_problem *p, attn_call *call)
{
    job j = {p, attn_kernel_for(call->tier, p->arithmetic, false)};
    attn_tasks tasks = {.n = attn_divide_up(p->n, TASK_NUMBERS),
                        .work = attn_activate_work(p),
                        .run = run_task,
                        .context = &j};

    assert(p->n == 0 || (p->x.data != NULL && p->output.data != NULL));
    (void)attn_run_tasks(&tasks, call);
}
