/* Runs the tasks of a call: the only way to use the pool. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "core/tasks.h"

#include "core/cpu.h"
#include "core/limits.h"
#include "core/pool.h"
#include "core/workspace.h"

#include <assert.h>
#include <string.h>
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

/* How many of n threads so many shares of work repay: a share repays the second thread, and half a
 * share each one after it. */
static int
repaid(double shares, int n)
{
    double most = shares < 1 ? 1 : 2 * shares;

    return most < n ? (int)most : n;
}

int
attn_useful_threads(double work, const attn_call *call)
{
    int n = call->n_threads < ATTN_MAX_THREADS ? call->n_threads : ATTN_MAX_THREADS;
    int n_awake = call->n_awake < n ? call->n_awake : n;
    double shares = work / get_work_per_thread();
    int n_woken = repaid(shares, n);
    int n_of_awake = repaid(ATTN_AWAKE_SOONER * shares, n_awake);

    return n_woken < n_of_awake ? n_of_awake : n_woken;
}

int
attn_threads_for(ptrdiff_t n_tasks, double work, const attn_call *call)
{
    if (n_tasks <= 1 || call->n_threads <= 1) {
        return 1;
    }
    int n_threads = attn_useful_threads(work, call);
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

/* Acquires a workspace for each of up to n threads; returns for how many. */
static int
acquire_workspaces(const attn_tasks *tasks, void **workspaces, int n)
{
    if (tasks->workspace_size == 0) {
        memset(workspaces, 0, (size_t)n * sizeof *workspaces);
        return n;
    }
    n = attn_acquire_workspaces(workspaces, n, tasks->workspace_size);
    for (int i = 0; i < n && tasks->clears; i++) {
        memset(workspaces[i], 0, ATTN_CLEAR_BYTES);
    }
    return n;
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
    int n_threads = attn_threads_for(tasks->n, tasks->work, call);
    n_threads = acquire_workspaces(tasks, workspaces, n_threads);
    if (n_threads == 0) {
        return -1;
    }
    s.list = begin_list();
    attn_parallel_for(tasks->n, n_threads, tasks->in_runs, run_task, &s,
                      &call->control);
    if (tasks->workspace_size > 0) {
        attn_release_workspaces(workspaces, n_threads);
    }
    call->n_awake = n_threads > call->n_awake ? n_threads : call->n_awake;
    return 0;
}
