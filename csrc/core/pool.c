/* Threads, jobs and fork.
 *
 * Several calls may run at once: each is a job, and idle workers join the first one that has
 * room. They join and leave by atomic operations. Posting a job, going to sleep and waking
 * happen under a lock. A child of fork starts without workers and makes its own. */
#define _GNU_SOURCE /* clock_gettime, sched_getcpu */
#include "core/pool.h"

#include "core/cpu.h"
#include "core/hooks.h"
#include "core/limits.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#define N_JOBS 16  /* at once; the callers of others work alone */
#define N_CALLED 4 /* workers that a thread wakes; each of them wakes as many */
#define SPINS 2000 /* before sleeping until a job ends, or until the lock is free */
#define LONGEST_TAIL 1000000 /* nanoseconds of spinning until others end a job */
#define APART _Alignas(128)  /* two cache lines, which some CPUs fetch together */

/* Indices that threads take in turn. */
typedef struct {
    APART atomic_ptrdiff_t next;
    ptrdiff_t end;
} run;

/* Its state, which counts workers: those that are at it, and those that it has room for; and says
 * whether the caller sleeps until the former are none. */
#define ONE_ACTIVE 1u
#define ACTIVE 0xffffu
#define ONE_ROOM 0x10000u
#define ROOM 0x7fff0000u
#define AWAITED 0x80000000u

typedef struct {
    APART atomic_uint state;
    APART attn_body body; /* what follows changes only while nobody is at it */
    void *context;
    attn_control *control;
    run *runs; /* one that all threads share, or one for each */
    int n_runs;
    int n_threads;
    int generation;  /* of the process that it began in */
    int cpu;         /* of the caller, when it began */
    pthread_t owner; /* the caller */
    atomic_bool taken;
} job;

typedef struct worker {
    struct worker *next; /* in the list of those that sleep */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool called; /* under its lock */
} worker;

static job jobs[N_JOBS];
static run runs_of_jobs[N_JOBS][ATTN_MAX_THREADS];

static struct {
    APART atomic_uint n_posted; /* counts jobs */
    APART pthread_mutex_t lock; /* for what follows */
    pthread_cond_t left;        /* signalled when an awaited job has no more workers */
    worker *asleep;
    int n_workers;
    int n_awake;
    int generation; /* counts forks */
    bool prepared_for_fork;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .left = PTHREAD_COND_INITIALIZER};

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

/* Takes the pool's lock, which is held for less time than a thread takes to sleep and wake. */
static void
lock_pool(void)
{
    for (int i = 0; i < SPINS; i++) {
        if (pthread_mutex_trylock(&pool.lock) == 0) {
            return;
        }
        attn_cpu_pause();
    }
    pthread_mutex_lock(&pool.lock);
}

static void
unlock_pool(void)
{
    pthread_mutex_unlock(&pool.lock);
}

/* ---- At a job ----------------------------------------------------------------------- */

/* Joins the first job that has room, if any, as the worker of this number. */
static job *
join(int *number)
{
    for (job *j = jobs; j < jobs + N_JOBS; j++) {
        unsigned state = atomic_load(&j->state);
        while ((state & ROOM) != 0) {
            if (atomic_compare_exchange_weak(&j->state, &state,
                                             state - ONE_ROOM + ONE_ACTIVE)) {
                *number = j->n_threads - (int)((state & ROOM) / ONE_ROOM);
                return j;
            }
        }
    }
    return NULL;
}

/* Works on a job until no index is left: on its own run, then on those of others. */
static void
drain(job *j, int number)
{
    for (int n = 0; n < j->n_runs; n++) {
        run *r = &j->runs[(number + n) % j->n_runs];
        if (n > 0 && atomic_load_explicit(&r->next, memory_order_relaxed) >= r->end) {
            continue; /* reading leaves the line in the caches of others */
        }
        for (;;) {
            ptrdiff_t i = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
            if (i >= r->end) {
                break;
            }
            if (attn_should_stop(j->control, number == 0)) {
                return;
            }
            j->body(j->context, i, number);
        }
    }
}

/* Lets nobody join a job any more. */
static void
close_job(job *j)
{
    if ((atomic_load(&j->state) & ROOM) != 0) {
        atomic_fetch_and(&j->state, ~ROOM);
    }
}

/* Takes a worker from a job, which has no index left. The job may be another one afterwards. */
static void
leave(job *j)
{
    close_job(j);
    if (atomic_fetch_sub(&j->state, ONE_ACTIVE) == (AWAITED | ONE_ACTIVE)) {
        lock_pool();
        pthread_cond_broadcast(&pool.left);
        unlock_pool();
    }
}

static bool
has_workers(job *j)
{
    return (atomic_load(&j->state) & ACTIVE) != 0;
}

/* ---- Workers ------------------------------------------------------------------------ */

/* Takes sleeping workers to wake, as far as jobs have more places than workers are awake; returns
 * how many. Under the lock. */
static int
choose(worker *called[N_CALLED])
{
    int wanted = -pool.n_awake, n = 0;

    if (pool.asleep == NULL) {
        return 0;
    }
    for (int i = 0; i < N_JOBS; i++) {
        unsigned state = atomic_load(&jobs[i].state);
        wanted += (int)((state & ROOM) / ONE_ROOM + (state & ACTIVE));
    }
    for (; n < N_CALLED && n < wanted && pool.asleep != NULL; n++) {
        called[n] = pool.asleep;
        pool.asleep = called[n]->next;
        pool.n_awake++;
    }
    return n;
}

static void
call(worker *called[N_CALLED], int n)
{
    for (int i = 0; i < n; i++) {
        pthread_mutex_lock(&called[i]->lock);
        called[i]->called = true;
        pthread_mutex_unlock(&called[i]->lock);
        pthread_cond_signal(&called[i]->wake);
    }
}

static bool
any_room(void)
{
    for (int i = 0; i < N_JOBS; i++) {
        if ((atomic_load(&jobs[i].state) & ROOM) != 0) {
            return true;
        }
    }
    return false;
}

/* Sleeps until called; not at all if a job has room. */
static void
sleep_until_called(worker *me)
{
    worker *called[N_CALLED];

    lock_pool();
    if (any_room()) {
        unlock_pool();
        return;
    }
    me->next = pool.asleep;
    pool.asleep = me;
    pool.n_awake--;
    unlock_pool();

    pthread_mutex_lock(&me->lock);
    while (!me->called) {
        pthread_cond_wait(&me->wake, &me->lock);
    }
    me->called = false;
    pthread_mutex_unlock(&me->lock);

    lock_pool();
    int n = choose(called);
    unlock_pool();
    call(called, n);
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

/* Spins until a job after the `seen`-th is posted; false if that takes too long. The steps of a
 * layer follow each other sooner than a thread can be woken. The time begins when the others, too,
 * are done with the job that this worker has left. On its caller's CPU it would slow the caller
 * down. */
static bool
watch_for_job(unsigned seen, const job *left, int callers_cpu)
{
    const int64_t spin = attn_get_spin_time(), start = attn_monotonic_time();
    int64_t end = start + spin;

    if (left == NULL || (callers_cpu >= 0 && current_cpu() == callers_cpu)) {
        return false;
    }
    while (atomic_load_explicit(&pool.n_posted, memory_order_relaxed) == seen) {
        int64_t now = attn_monotonic_time();
        if (now >= end) {
            return false;
        }
        if (atomic_load_explicit(&left->taken, memory_order_relaxed) &&
            now - start < LONGEST_TAIL) {
            end = now + spin;
        }
        attn_cpu_pause();
    }
    return true;
}

static void *
work(void *unused)
{
    worker me = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};
    const job *left = NULL; /* the last one */
    int callers_cpu = -1;   /* of that */

    (void)unused;
    for (;;) {
        unsigned seen = atomic_load(&pool.n_posted);
        int number;
        job *j = join(&number);
        if (j != NULL) {
            callers_cpu = j->cpu;
            drain(j, number);
            leave(j);
            left = j;
        } else if (!watch_for_job(seen, left, callers_cpu)) {
            sleep_until_called(&me);
            left = NULL;
        }
    }
    return NULL;
}

/* ---- Fork --------------------------------------------------------------------------- */

static void
before_fork(void)
{
    lock_pool();
}

static void
after_fork_in_parent(void)
{
    unlock_pool();
}

/* Only the forking thread lives on: no workers, and no jobs but its own, which nobody joins. */
static void
after_fork_in_child(void)
{
    for (job *j = jobs; j < jobs + N_JOBS; j++) {
        if (atomic_load(&j->taken) && pthread_equal(j->owner, pthread_self())) {
            close_job(j);
        } else {
            atomic_store(&j->state, 0);
            atomic_store(&j->taken, false);
        }
    }
    pool.asleep = NULL;
    pool.n_workers = 0;
    pool.n_awake = 0;
    pool.generation++;
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.left, NULL);
}

/* ---- Callers ------------------------------------------------------------------------ */

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
        pool.n_awake++;
    }
}

static void
work_alone(ptrdiff_t n, attn_body body, void *context, attn_control *control)
{
    for (ptrdiff_t i = 0; i < n && !attn_should_stop(control, true); i++) {
        body(context, i, 0);
    }
}

/* A job that nobody has; NULL if there is none. Under the lock. */
static job *
take_job(void)
{
    for (job *j = jobs; j < jobs + N_JOBS; j++) {
        if (!atomic_load(&j->taken)) {
            atomic_store(&j->taken, true);
            j->owner = pthread_self();
            return j;
        }
    }
    return NULL;
}

/* Cuts n indices into the runs of a job, of which each thread has one, or all the same. */
static void
cut(job *j, ptrdiff_t n, int n_runs)
{
    j->runs = runs_of_jobs[j - jobs];
    j->n_runs = n_runs;
    for (int i = 0; i < n_runs; i++) {
        atomic_init(&j->runs[i].next, n / n_runs * i + n % n_runs * i / n_runs);
        j->runs[i].end = n / n_runs * (i + 1) + n % n_runs * (i + 1) / n_runs;
    }
}

/* Sleeps until no worker is at a closed job. A worker's task may take long, so this polls while
 * it waits. In a child of a fork, which a poll may have made, nobody is waited for. */
static void
wait_for_workers(job *j)
{
    lock_pool();
    atomic_fetch_or(&j->state, AWAITED);
    while (has_workers(j) && j->generation == pool.generation) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += ATTN_POLL_INTERVAL;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_cond_timedwait(&pool.left, &pool.lock, &until) == ETIMEDOUT) {
            unlock_pool();
            attn_should_stop(j->control, true);
            lock_pool();
        }
    }
    unlock_pool();
}

/* Ends a job for the caller, when no index is left. */
static void
end_job(job *j)
{
    close_job(j);
    for (int i = 0; i < SPINS && has_workers(j); i++) {
        attn_cpu_pause();
    }
    if (has_workers(j)) {
        wait_for_workers(j);
    }
    if (has_workers(j)) { /* in a child of a fork: the tasks they were at are lost */
        j->control->lost = true;
        attn_stop(j->control);
    }
    atomic_store(&j->taken, false);
}

void
attn_parallel_for(ptrdiff_t n, int n_threads, bool in_runs, attn_body body,
                  void *context, attn_control *control)
{
    worker *called[N_CALLED];
    int n_called = 0;
    job *j = NULL;

    if (n_threads > 1) {
        lock_pool();
        j = take_job();
        if (j != NULL) {
            hire(n_threads - 1);
            j->body = body;
            j->context = context;
            j->control = control;
            j->n_threads = n_threads;
            j->generation = pool.generation;
            j->cpu = current_cpu();
            cut(j, n, in_runs ? n_threads : 1);
            atomic_store(&j->state, (unsigned)(n_threads - 1) * ONE_ROOM);
            atomic_fetch_add(&pool.n_posted, 1);
            n_called = choose(called);
        }
        unlock_pool();
    }
    if (j == NULL) {
        work_alone(n, body, context, control);
        return;
    }
    call(called, n_called);
    drain(j, 0);
    end_job(j);
}
