/* THE way to run n tasks. */
#include "core/tasks.h"

#include "core/cpu.h"
#include "core/limits.h"
#include "core/pool.h"
#include "core/workspace.h"

#include <assert.h>

static atomic_int default_threads = 1;
static _Atomic double work_per_thread = ATTN_WORK_PER_THREAD;

void
attn_set_num_threads(int n)
{
    atomic_store(&default_threads, n);
}

int
attn_get_num_threads(void)
{
    return atomic_load(&default_threads);
}

double
attn_set_work_per_thread(double work)
{
    return atomic_exchange(&work_per_thread, work);
}

double
attn_get_work_per_thread(void)
{
    return atomic_load(&work_per_thread);
}

int
attn_useful_threads(double work, int n_threads)
{
    double repaid = 1 + work / attn_get_work_per_thread();

    n_threads = n_threads < ATTN_MAX_THREADS ? n_threads : ATTN_MAX_THREADS;
    return repaid < n_threads ? (int)repaid : n_threads;
}

/* What the threads of a call share. */
typedef struct {
    const attn_tasks *tasks;
    attn_control *control;
    void **workspaces; /* one for each worker */
} shared;

static void
run_task(void *context, ptrdiff_t index, int worker)
{
    const shared *s = context;
    const attn_worker who = {s->workspaces[worker], s->control, worker == 0};
    uint32_t control_word = attn_fp_control_reset();

    s->tasks->run(s->tasks->context, index, &who);
    attn_fp_control_restore(control_word);
}

int
attn_run_tasks(const attn_tasks *tasks, attn_call *call)
{
    void *workspaces[ATTN_MAX_THREADS];
    shared s = {tasks, &call->control, workspaces};
    int n_threads = 1;

    assert(tasks->n >= 0 && call->n_threads >= 1);
    if (tasks->n == 0) {
        return 0;
    }
    if (tasks->n > 1 && call->n_threads > 1) {
        n_threads = attn_useful_threads(tasks->work, call->n_threads);
        n_threads = tasks->n < n_threads ? (int)tasks->n : n_threads;
    }
    n_threads = attn_acquire_workspaces(workspaces, n_threads, tasks->workspace_size);
    if (n_threads == 0) {
        return -1;
    }
    attn_parallel_for(tasks->n, n_threads, run_task, &s, &call->control);
    attn_release_workspaces(workspaces, n_threads);
    return 0;
}
