/* An own pool of threads, workspaces kept between calls, and how many CPUs we may use. All
 * atomics and locks of the core live here.
 *
 * Threads start when first needed and sleep when idle. Several calls may run at once: each
 * is a job in a list, and idle workers join the first one that has room and work left. A
 * child of fork starts without workers and makes its own. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "attention.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif

#define POLL_INTERVAL 50000000    /* ns between polls of the caller: Ctrl-C in 200 ms */
#define MAX_KEPT ATTN_MAX_THREADS /* workspaces kept for later calls */
#define MAX_KEPT_SIZE (1 << 20)   /* bytes of each, at most */
#define SPINS 2000                /* looks at a job before sleeping until it ends */

/* ---- Hooks -------------------------------------------------------------------------- */

/* Starts a detached thread that takes no signals: they are the interpreter's. */
static int
create_thread(void *(*start)(void *), void *argument)
{
    pthread_attr_t attributes;
    sigset_t all, former;
    pthread_t thread;

    if (pthread_attr_init(&attributes) != 0) {
        return -1;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &former);
    int status = pthread_create(&thread, &attributes, start, argument);
    pthread_sigmask(SIG_SETMASK, &former, NULL);
    pthread_attr_destroy(&attributes);
    return status;
}

attn_hooks attn_hook = {malloc, free, create_thread};

/* ---- Pool --------------------------------------------------------------------------- */

typedef struct job {
    struct job *next;
    attn_body body;
    void *context;
    attn_control *control;
    ptrdiff_t n;
    atomic_ptrdiff_t claimed; /* indices handed out; beyond n: none left */
    int room;                 /* workers that may still join; under the lock */
    int joined;               /* workers that ever joined; under the lock */
    atomic_int active;        /* workers at it now; changed under the lock */
    pthread_cond_t left;      /* signalled when active becomes 0 */
} job;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work; /* signalled when a job comes in */
    job *jobs;
    int n_workers;
    bool prepared_for_fork;
    void *kept[MAX_KEPT]; /* workspaces, each behind a header with its size */
    int n_kept;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

static int64_t
now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool
attn_should_stop(attn_control *control, bool is_caller)
{
    if (atomic_load_explicit(&control->stop, memory_order_relaxed)) {
        return true;
    }
    if (!is_caller || control->poll == NULL) {
        return false;
    }
    int64_t time = now();
    if (control->next_poll == 0) {
        control->next_poll = time + POLL_INTERVAL;
    }
    if (time < control->next_poll) {
        return false;
    }
    bool stop = control->poll(control->poll_context);
    atomic_store_explicit(&control->stop, stop, memory_order_relaxed);
    control->next_poll = now() + POLL_INTERVAL;
    return stop;
}

static bool
has_work(job *j)
{
    return j->room > 0 &&
           atomic_load_explicit(&j->claimed, memory_order_relaxed) < j->n;
}

/* Works on a job until no index is left. */
static void
drain(job *j, int worker)
{
    for (;;) {
        ptrdiff_t i = atomic_fetch_add_explicit(&j->claimed, 1, memory_order_relaxed);
        if (i >= j->n || attn_should_stop(j->control, worker == 0)) {
            return;
        }
        j->body(j->context, i, worker);
    }
}

static void *
work(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        job *j = pool.jobs;
        while (j != NULL && !has_work(j)) {
            j = j->next;
        }
        if (j == NULL) {
            pthread_cond_wait(&pool.work, &pool.lock);
            continue;
        }
        int worker = ++j->joined;
        j->room--;
        atomic_fetch_add(&j->active, 1);
        pthread_mutex_unlock(&pool.lock);
        drain(j, worker);
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
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.work, NULL);
}

/* Makes sure of up to n workers; fewer where threads cannot be created. Under the lock. */
static void
hire(int n)
{
    if (!pool.prepared_for_fork) {
        if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) !=
            0) {
            return;
        }
        pool.prepared_for_fork = true;
    }
    while (pool.n_workers < n && attn_hook.create_thread(work, NULL) == 0) {
        pool.n_workers++;
    }
}

/* Waits until no worker is at the job, which is in no list any more. Workers are past
 * their last index, but one task of theirs may take long: polls meanwhile. Under the
 * lock. */
static void
wait_for_workers(job *j)
{
    while (atomic_load(&j->active) > 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += POLL_INTERVAL;
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

void
attn_parallel_for(ptrdiff_t n, int n_threads, attn_body body, void *context,
                  attn_control *control)
{
    job j = {.body = body, .context = context, .control = control, .n = n};

    if (n_threads <= 1) {
        drain(&j, 0);
        return;
    }
    j.room = n_threads - 1;
    pthread_cond_init(&j.left, NULL);
    pthread_mutex_lock(&pool.lock);
    hire(n_threads - 1);
    j.next = pool.jobs;
    pool.jobs = &j;
    for (int i = 1; i < n_threads; i++) {
        pthread_cond_signal(&pool.work);
    }
    pthread_mutex_unlock(&pool.lock);

    drain(&j, 0);
    for (int i = 0; i < SPINS && atomic_load(&j.active) > 0; i++) {
        attn_cpu_pause();
    }
    pthread_mutex_lock(&pool.lock);
    unlist(&j);
    wait_for_workers(&j);
    pthread_mutex_unlock(&pool.lock);
    pthread_cond_destroy(&j.left);
}

/* ---- Workspaces --------------------------------------------------------------------- */

typedef struct {
    _Alignas(ATTN_ALIGNMENT) void *block; /* as allocated */
    size_t size;                          /* of the workspace behind this header */
} header;

static header *
header_of(void *workspace)
{
    return (header *)workspace - 1;
}

static void *
allocate_workspace(size_t size)
{
    char *block = attn_hook.allocate(size + sizeof(header) + ATTN_ALIGNMENT - 1);
    if (block == NULL) {
        return NULL;
    }
    size_t misaligned = (uintptr_t)block % ATTN_ALIGNMENT;
    header *h =
        (header *)(void *)(block + (ATTN_ALIGNMENT - misaligned) % ATTN_ALIGNMENT);
    h->block = block;
    h->size = size;
    return h + 1;
}

void *
attn_workspace_acquire(size_t size)
{
    void *workspace = NULL;

    pthread_mutex_lock(&pool.lock);
    if (pool.n_kept > 0) {
        workspace = pool.kept[--pool.n_kept];
    }
    pthread_mutex_unlock(&pool.lock);
    if (workspace != NULL && header_of(workspace)->size >= size) {
        return workspace;
    }
    if (workspace != NULL) {
        attn_hook.free(header_of(workspace)->block);
    }
    return allocate_workspace(size);
}

int
attn_acquire_workspaces(void **workspaces, int n, size_t size)
{
    int i = 0;

    while (i < n && (workspaces[i] = attn_workspace_acquire(size)) != NULL) {
        i++;
    }
    return i;
}

void
attn_workspace_release(void *workspace)
{
    bool keep = header_of(workspace)->size <= MAX_KEPT_SIZE;

    pthread_mutex_lock(&pool.lock);
    keep = keep && pool.n_kept < MAX_KEPT;
    if (keep) {
        pool.kept[pool.n_kept++] = workspace;
    }
    pthread_mutex_unlock(&pool.lock);
    if (!keep) {
        attn_hook.free(header_of(workspace)->block);
    }
}

void
attn_workspace_free_all(void)
{
    pthread_mutex_lock(&pool.lock);
    while (pool.n_kept > 0) {
        attn_hook.free(header_of(pool.kept[--pool.n_kept])->block);
    }
    pthread_mutex_unlock(&pool.lock);
}

/* ---- How many threads -----------------------------------------------------------------*/

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
attn_useful_threads(double multiplications, int n_threads)
{
    double repaid = 1 + multiplications / attn_get_work_per_thread();

    n_threads = n_threads < ATTN_MAX_THREADS ? n_threads : ATTN_MAX_THREADS;
    return repaid < n_threads ? (int)repaid : n_threads;
}

/* ---- How many CPUs ------------------------------------------------------------------- */

static int
affinity_count(void)
{
#if defined(__linux__)
    /* Larger than the kernel's own set, whatever its CONFIG_NR_CPUS is. */
    const int max_cpus = 1 << 16;
    size_t size = CPU_ALLOC_SIZE((size_t)max_cpus);
    cpu_set_t *set = CPU_ALLOC(max_cpus);
    int count = 0;

    if (set != NULL && sched_getaffinity(0, size, set) == 0) {
        count = CPU_COUNT_S(size, set);
    }
    if (set != NULL) {
        CPU_FREE(set);
    }
    if (count > 0) {
        return count;
    }
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < ATTN_MAX_THREADS ? (int)online : 1;
}

/* Reads two numbers, the first of them "max" for none, from a file of a cgroup folder;
 * returns how many it got. */
static int
read_numbers(const char *folder, const char *file, double *first, double *second)
{
    char path[4200];
    int n = snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", folder, file);
    FILE *stream = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;

    if (stream == NULL) {
        return 0;
    }
    n = fscanf(stream, "%lf %lf", first, second);
    fclose(stream);
    return n;
}

/* CPUs that the quota of this cgroup folder grants, or none: 0. */
static double
folder_quota(const char *folder, bool version_2)
{
    double quota, period, unused;

    if (version_2) {
        return read_numbers(folder, "cpu.max", &quota, &period) == 2 ? quota / period
                                                                     : 0;
    }
    if (read_numbers(folder, "cpu.cfs_quota_us", &quota, &unused) < 1 || quota <= 0 ||
        read_numbers(folder, "cpu.cfs_period_us", &period, &unused) < 1) {
        return 0;
    }
    return quota / period;
}

/* The smallest quota on the way from this process's cgroup to the root. In a container the
 * path may be the host's, of which only the root is there. */
static double
walk_quota(char *folder, size_t root_length, bool version_2)
{
    double least = 0;

    for (;;) {
        double quota = folder_quota(folder, version_2);
        least = quota > 0 && (least == 0 || quota < least) ? quota : least;
        char *slash = strrchr(folder + root_length, '/');
        if (slash == NULL) {
            return least;
        }
        *slash = '\0';
    }
}

/* Source: Linux documentation, cgroup-v2.rst, "CPU Interface Files", and for version 1
 * sched-bwc.rst; /proc/self/cgroup has lines "number:controllers:path". */
static double
cgroup_quota(void)
{
    char line[4096 + 256];
    double least = 0;
    FILE *stream = fopen("/proc/self/cgroup", "re");

    while (stream != NULL && fgets(line, sizeof line, stream) != NULL) {
        char *controllers = strchr(line, ':');
        char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (path == NULL) {
            continue;
        }
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        bool version_2 = controllers[1] == '\0';
        if (!version_2 && strstr(controllers, "cpu") == NULL) {
            continue;
        }
        char folder[4096 + 256 + 8];
        const char *root = version_2 ? "" : "/cpu";
        snprintf(folder, sizeof folder, "%s%s", root, path);
        double quota = walk_quota(folder, strlen(root), version_2);
        least = quota > 0 && (least == 0 || quota < least) ? quota : least;
    }
    if (stream != NULL) {
        fclose(stream);
    }
    return least;
}

int
attn_cpu_limit(void)
{
    int cpus = affinity_count();
    double quota = cgroup_quota();

    if (quota > 0 && quota < cpus) {
        cpus = quota > 1 ? (int)(quota + 0.999) : 1;
    }
    return cpus < ATTN_MAX_THREADS ? cpus : ATTN_MAX_THREADS;
}
