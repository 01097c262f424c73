/* Runs the tasks of a call: the only way to use the pool. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "core/tasks.h"

#include "core/cpu.h"
#include "core/limits.h"
#include "core/pool.h"
#include "core/workspace.h"

#include <assert.h>
#include <time.h>

static atomic_int default_threads = 1;

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

#ifdef ATTN_TESTING

static _Atomic double work_per_thread = ATTN_WORK_PER_THREAD;

double
attn_set_work_per_thread(double work)
{
    return atomic_exchange(&work_per_thread, work);
}

static double
get_work_per_thread(void)
{
    return atomic_load(&work_per_thread);
}

static struct {
    attn_task_note *notes; /* or NULL */
    ptrdiff_t n;
    atomic_ptrdiff_t n_tasks, n_lists; /* so far */
} watched;

ptrdiff_t
attn_watch_tasks(attn_task_note *notes, ptrdiff_t n)
{
    watched.notes = notes;
    watched.n = n;
    atomic_store(&watched.n_lists, 0);
    return atomic_exchange(&watched.n_tasks, 0);
}

/* The index of a list of tasks that begins now. */
static ptrdiff_t
begin_list(void)
{
    return watched.notes == NULL ? 0 : atomic_fetch_add(&watched.n_lists, 1);
}

/* CPU time of this thread in nanoseconds; 0 unless tasks are watched. */
static int64_t
begin_task(void)
{
    struct timespec now;

    if (watched.notes == NULL) {
        return 0;
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Notes a task of a list that began then. */
static void
end_task(ptrdiff_t list, int worker, int64_t begin)
{
    if (watched.notes == NULL) {
        return;
    }
    ptrdiff_t i = atomic_fetch_add(&watched.n_tasks, 1);
    if (i < watched.n) {
        watched.notes[i] = (attn_task_note){list, worker, begin_task() - begin};
    }
}

#else

static double
get_work_per_thread(void)
{
    return ATTN_WORK_PER_THREAD;
}

static ptrdiff_t
begin_list(void)
{
    return 0;
}

static int64_t
begin_task(void)
{
    return 0;
}

static void
end_task(ptrdiff_t list, int worker, int64_t begin)
{
    (void)list, (void)worker, (void)begin;
}

#endif

int
attn_useful_threads(double work, int n_threads)
{
    double shares = work / get_work_per_thread();
    double repaid = shares < 1 ? 1 : 2 * shares;

    n_threads = n_threads < ATTN_MAX_THREADS ? n_threads : ATTN_MAX_THREADS;
    return repaid < n_threads ? (int)repaid : n_threads;
}

int
attn_threads_for(ptrdiff_t n_tasks, double work, int n_threads)
{
    if (n_tasks <= 1 || n_threads <= 1) {
        return 1;
    }
    n_threads = attn_useful_threads(work, n_threads);
    return n_tasks < n_threads ? (int)n_tasks : n_threads;
}

/* What the threads of a call share. */
typedef struct {
    const attn_tasks *tasks;
    const struct attn_tier *tier;
    attn_control *control;
    void **workspaces; /* one for each worker */
    ptrdiff_t list;    /* its index, for tests */
} shared;

static void
run_task(void *context, ptrdiff_t index, int worker)
{
    const shared *s = context;
    const attn_worker who = {s->workspaces[worker], s->tier, s->control, worker == 0};
    uint32_t control_word = attn_fp_control_reset();

    int64_t begin = begin_task();
    s->tasks->run(s->tasks->context, index, &who);
    end_task(s->list, worker, begin);
    attn_fp_control_restore(control_word);
}

int
attn_run_tasks(const attn_tasks *tasks, attn_call *call)
{
    void *workspaces[ATTN_MAX_THREADS];
    shared s = {.tasks = tasks,
                .tier = call->tier,
                .control = &call->control,
                .workspaces = workspaces};

    assert(tasks->n >= 0 && call->n_threads >= 1);
    if (tasks->n == 0) {
        return 0;
    }
    int n_threads = attn_threads_for(tasks->n, tasks->work, call->n_threads);
    n_threads = attn_acquire_workspaces(workspaces, n_threads, tasks->workspace_size);
    if (n_threads == 0) {
        return -1;
    }
    s.list = begin_list();
    attn_parallel_for(tasks->n, n_threads, tasks->in_runs, run_task, &s,
                      &call->control);
    attn_release_workspaces(workspaces, n_threads);
    return 0;
}
