/* The driver of the steps between projections and attention. */
#include "core/rotary.h"

#include "core/tiers.h"

#include <assert.h>

typedef struct {
    const attn_rotary_problem *p;
    const attn_kernel *kernel;
    ptrdiff_t n_tokens; /* of all batches */
} job;

static void
run_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;

    j->kernel->rotary.run(j->p, index * ATTN_TASK_ROWS,
                          attn_part_of(j->n_tokens, ATTN_TASK_ROWS, index), worker);
}

static ptrdiff_t
count_tokens(const attn_rotary_problem *p)
{
    return p->starts == NULL ? p->batch.n * p->n_tokens
                             : (ptrdiff_t)p->starts[p->batch.n];
}

double
attn_rotary_work(const attn_rotary_problem *p)
{
    return (double)count_tokens(p) * (double)p->n_heads * (double)p->head_dim *
           ATTN_WORK_OF_A_NUMBER;
}

int
attn_rotary(const attn_rotary_problem *p, attn_call *call)
{
    attn_dtype arithmetic = attn_storage_of(p->dtype)->arithmetic;
    job j = {p, attn_kernel_for(call->tier, arithmetic, false), count_tokens(p)};
    attn_tasks tasks = {.n = attn_divide_up(j.n_tokens, ATTN_TASK_ROWS),
                        .work = attn_rotary_work(p),
                        .workspace_size = j.kernel->rotary.workspace_size(p),
                        .run = run_task,
                        .context = &j};

    assert(p->norm == NULL || p->norm->n_columns == p->head_dim ||
           p->norm->n_columns == p->n_heads * p->head_dim);
    assert(p->rotary_dim % 2 == 0 && p->rotary_dim <= p->head_dim);
    assert((p->past_lengths == NULL) == (p->lengths == NULL));
    assert(p->past_lengths == NULL || p->batch.n_axes == 1);
    if (p->head_dim == 0) { /* a workspace of nothing has no address */
        return 0;
    }
    return attn_run_tasks(&tasks, call);
}
