/* Threads, jobs and fork.
 *
 * Several calls may run at once: each is a job in a list, and idle workers join the first
 * one that has room and work left. A child of fork starts without workers and makes its
 * own. */
#define _GNU_SOURCE /* clock_gettime, sched_getcpu */
#include "core/pool.h"

#include "core/cpu.h"
#include "core/hooks.h"
#include "core/limits.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#define SPINS 2000 /* before sleeping until a job ends */

typedef struct job {
    struct job *next;
    attn_body body;
    void *context;
    attn_control *control;
    ptrdiff_t n;
    atomic_ptrdiff_t claimed; /* indices handed out; beyond n: none left */
    atomic_ptrdiff_t *runs;   /* the next index of each thread's run; or NULL */
    int n_runs;               /* 0 without threads */
    int room;                 /* workers that may still join; under the lock */
    int joined;               /* workers that ever joined; under the lock */
    atomic_int active;        /* workers at it now; changed under the lock */
    int generation;           /* of the process that it began in */
    int cpu;                  /* of the caller, when it began */
    pthread_cond_t left;      /* signalled when active becomes 0 */
} job;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work; /* signalled when a job comes in */
    job *jobs;
    int n_workers;
    int generation; /* counts forks */
    bool prepared_for_fork;
    atomic_uint n_posted; /* counts jobs; changed under the lock */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

static atomic_llong spin_time = 60000;

void
attn_set_spin_time(int64_t ns)
{
    atomic_store(&spin_time, ns);
}

int64_t
attn_get_spin_time(void)
{
    return atomic_load(&spin_time);
}

static bool
has_work(job *j)
{
    return j->room > 0 &&
           atomic_load_explicit(&j->claimed, memory_order_relaxed) < j->n;
}

/* The index where a run begins, or where the one before it ends. */
static ptrdiff_t
begin_of_run(const job *j, int run)
{
    return j->n / j->n_runs * run + j->n % j->n_runs * run / j->n_runs;
}

/* The next index of a worker's run or, behind that, of the next run that has one; negative
 * where none is left. */
static ptrdiff_t
claim(job *j, int worker)
{
    ptrdiff_t i = atomic_fetch_add_explicit(&j->claimed, 1, memory_order_relaxed);

    if (i >= j->n) {
        return -1;
    }
    while (j->runs != NULL) { /* ends: as many claims succeed as runs have indices */
        i = atomic_fetch_add_explicit(&j->runs[worker], 1, memory_order_relaxed);
        if (i < begin_of_run(j, worker + 1)) {
            break;
        }
        worker = (worker + 1) % j->n_runs;
    }
    return i;
}

/* Works on a job until no index is left. */
static void
drain(job *j, int worker)
{
    for (;;) {
        ptrdiff_t i = claim(j, worker);
        if (i < 0 || attn_should_stop(j->control, worker == 0)) {
            return;
        }
        j->body(j->context, i, worker);
    }
}

/* Spins for a while until a job after the `seen`-th is posted: the steps of a layer follow each
 * other sooner than a thread can be woken. */
static void
watch_for_job(unsigned seen)
{
    int64_t end = attn_monotonic_time() + attn_get_spin_time();

    while (atomic_load_explicit(&pool.n_posted, memory_order_relaxed) == seen &&
           attn_monotonic_time() < end) {
        attn_cpu_pause();
    }
}

/* The CPU that this thread is on; negative where the system does not say. */
static int
current_cpu(void)
{
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

static void *
work(void *unused)
{
    bool watched = true; /* has spun since the last job, or must not spin */

    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        job *j = pool.jobs;
        while (j != NULL && !has_work(j)) {
            j = j->next;
        }
        if (j == NULL && !watched) {
            unsigned seen = atomic_load(&pool.n_posted);
            watched = true;
            pthread_mutex_unlock(&pool.lock);
            watch_for_job(seen);
            pthread_mutex_lock(&pool.lock);
            continue;
        }
        if (j == NULL) {
            pthread_cond_wait(&pool.work, &pool.lock);
            continue;
        }
        int worker = ++j->joined, callers_cpu = j->cpu;
        j->room--;
        atomic_fetch_add(&j->active, 1);
        pthread_mutex_unlock(&pool.lock);
        drain(j, worker);
        /* Spinning on the caller's CPU would slow the caller down. */
        watched = callers_cpu >= 0 && current_cpu() == callers_cpu;
        pthread_mutex_lock(&pool.lock);
        if (atomic_fetch_sub(&j->active, 1) == 1) {
            pthread_cond_signal(&j->left);
        }
    }
    return NULL;
}

static void
before_fork(void)
{
    pthread_mutex_lock(&pool.lock);
}

static void
after_fork_in_parent(void)
{
    pthread_mutex_unlock(&pool.lock);
}

/* Only the forking thread lives on: no workers, no jobs. */
static void
after_fork_in_child(void)
{
    pool.jobs = NULL;
    pool.n_workers = 0;
    pool.generation++;
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.work, NULL);
}

/* Makes sure of up to n workers; fewer where threads cannot be created. Under the lock. */
static void
hire(int n)
{
    if (!pool.prepared_for_fork) {
        if (attn_at_fork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) {
            return;
        }
        pool.prepared_for_fork = true;
    }
    while (pool.n_workers < n && attn_hook.create_thread(work, NULL) == 0) {
        pool.n_workers++;
    }
}

/* Waits until no worker is at the job, which is no longer listed. No index is left, but a
 * worker's task may take long, so this polls while it waits. Under the lock. */
static void
wait_for_workers(job *j)
{
    while (atomic_load(&j->active) > 0 && j->generation == pool.generation) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += ATTN_POLL_INTERVAL;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_cond_timedwait(&j->left, &pool.lock, &until) == ETIMEDOUT) {
            pthread_mutex_unlock(&pool.lock);
            attn_should_stop(j->control, true);
            pthread_mutex_lock(&pool.lock);
        }
    }
}

static void
unlist(job *gone)
{
    job **link = &pool.jobs;
    while (*link != gone) {
        link = &(*link)->next;
    }
    *link = gone->next;
}

/* Ends a job for the caller, when no index is left. In a child of a fork, which a poll may have
 * made, there is no worker to wait for, and the tasks they were at are lost. */
static void
leave(job *j)
{
    pthread_mutex_lock(&pool.lock);
    if (j->generation == pool.generation) {
        unlist(j);
        wait_for_workers(j);
    }
    if (j->generation != pool.generation && atomic_load(&j->active) > 0) {
        j->control->lost = true;
        attn_stop(j->control);
    }
    pthread_mutex_unlock(&pool.lock);
}

void
attn_parallel_for(ptrdiff_t n, int n_threads, bool in_runs, attn_body body,
                  void *context, attn_control *control)
{
    job j = {.body = body, .context = context, .control = control, .n = n};
    atomic_ptrdiff_t runs[ATTN_MAX_THREADS];

    if (n_threads <= 1) {
        drain(&j, 0);
        return;
    }
    j.n_runs = n_threads;
    for (int i = 0; i < n_threads && in_runs; i++) {
        atomic_init(&runs[i], begin_of_run(&j, i));
        j.runs = runs;
    }
    j.room = n_threads - 1;
    j.cpu = current_cpu();
    pthread_cond_init(&j.left, NULL);
    pthread_mutex_lock(&pool.lock);
    hire(n_threads - 1);
    j.generation = pool.generation;
    j.next = pool.jobs;
    pool.jobs = &j;
    atomic_fetch_add(&pool.n_posted, 1);
    for (int i = 1; i < n_threads; i++) {
        pthread_cond_signal(&pool.work);
    }
    pthread_mutex_unlock(&pool.lock);

    drain(&j, 0);
    for (int i = 0; i < SPINS && atomic_load(&j.active) > 0; i++) {
        attn_cpu_pause();
    }
    leave(&j);
    if (j.generation == pool.generation) {
        pthread_cond_destroy(&j.left);
    }
}
