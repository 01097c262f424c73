/* How the tasks of a call are run: on as many threads as their work repays, each with a
 * workspace, in the default floating-point mode, until the call is told to stop. */
#ifndef ATTN_CORE_TASKS_H
#define ATTN_CORE_TASKS_H

#include "core/stop.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct attn_tier;

/* What every call of the core is told besides its problem. */
typedef struct {
    const struct attn_tier *tier;
    int n_threads; /* at most */
    int n_awake;   /* threads that earlier tasks of the call had, which look for more */
    attn_control control;
} attn_call;

/* The thread that runs a task. */
typedef struct {
    void *workspace;
    const struct attn_tier *tier; /* the call's */
    attn_control *control;
    bool is_caller; /* not one of the pool's threads */
} attn_worker;

/* Should the call's tasks give up? Asked between blocks. */
static inline bool
attn_gives_up(const attn_worker *worker)
{
    return attn_should_stop(worker->control, worker->is_caller);
}

/* n / each, rounded up: how many parts of `each` hold n. */
static inline ptrdiff_t
attn_divide_up(ptrdiff_t n, ptrdiff_t each)
{
    return (n + each - 1) / each;
}

/* The size of one of the parts that n is cut into: `each`, or less for the last. */
static inline ptrdiff_t
attn_part_of(ptrdiff_t n, ptrdiff_t each, ptrdiff_t index)
{
    ptrdiff_t left = n - index * each;

    return left < each ? left : each;
}

typedef struct {
    ptrdiff_t n;
    double work;           /* of all tasks together, in multiplications */
    size_t workspace_size; /* bytes, for each thread; 0: none */
    bool clears;           /* workspaces begin with ATTN_CLEAR_BYTES zeros */
    bool in_runs; /* a thread takes tasks that follow each other, which share data */
    void (*run)(const void *context, ptrdiff_t index, const attn_worker *);
    const void *context;
} attn_tasks;

/* Runs every task once; -1 if there is no memory for a single workspace. */
int attn_run_tasks(const attn_tasks *, attn_call *);

/* How many of a call's threads are worth using for so many multiplications. */
int attn_useful_threads(double work, const attn_call *);

/* How many threads run n_tasks tasks that together have this work. */
int attn_threads_for(ptrdiff_t n_tasks, double work, const attn_call *);

/* How many multiplications repay waking a second thread: some 20 us of them. Half as many repay each
 * one after it, because the threads that are awake wake the others. */
#define ATTN_WORK_PER_THREAD 1e6

/* How many times less of it repays a thread that is awake. */
#define ATTN_AWAKE_SOONER 4

/* Those that take as long as beginning a task. */
#define ATTN_WORK_OF_A_TASK (ATTN_WORK_PER_THREAD / 8)

/* Multiplications that take as long as reading a byte of keys, values or weights from beyond the
 * first-level cache, which takes most of a call with few queries or rows. One thread reads some
 * 25 GB/s, and multiplies 50e9 times a second. */
#define ATTN_WORK_OF_A_BYTE 2

/* Multiplications that take as long as a number of a norm, a rotation or an activation. */
#define ATTN_WORK_OF_A_NUMBER 30

/* The process's default for n_threads. */
void attn_set_num_threads(int);
int attn_get_num_threads(void);

#ifdef ATTN_TESTING /* tests and experiments alone */

/* Replaces ATTN_WORK_PER_THREAD; returns the number before. */
double attn_set_work_per_thread(double);

/* A task that has run: the index of its list of tasks, counted since tasks are watched; the
 * thread; its CPU time. */
typedef struct {
    int64_t list, worker, nanoseconds;
} attn_task_note;

/* Notes the first n tasks that run from now on; with NULL no more. Returns how many have
 * run since the last time. Not while calls run. */
ptrdiff_t attn_watch_tasks(attn_task_note *, ptrdiff_t n);

#endif

#endif
