/* The thread pool: its loop, polls, callers at once, forks. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "core/pool.h"

#include "core/attention.h"
#include "core/stop.h"
#include "support/check.h"
#include "support/problem.h"

#include <fenv.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

static double
seconds(void)
{
    return (double)attn_monotonic_time() * 1e-9;
}

static void
rest(void)
{
    const struct timespec one_ms = {0, 1000000};
    nanosleep(&one_ms, NULL);
}

/* ---- The loop ----------------------------------------------------------------------- */

enum { MAX_INDICES = 1000, MAX_WORKERS = 64 };

typedef struct {
    int n_threads;
    atomic_int n_taken[MAX_INDICES];
    atomic_bool busy[MAX_WORKERS];
    atomic_bool clash; /* a worker twice at once, or one that is none */
} tally;

static void
take_index(void *context, ptrdiff_t index, int worker)
{
    tally *t = context;

    if (worker < 0 || worker >= t->n_threads ||
        atomic_exchange(&t->busy[worker], true)) {
        atomic_store(&t->clash, true);
        return;
    }
    atomic_fetch_add(&t->n_taken[index], 1);
    if (index % 50 == 0) {
        rest();
    }
    atomic_store(&t->busy[worker], false);
}

void
test_parallel_for_takes_each_index_once(void)
{
    static const ptrdiff_t sizes[] = {0, 1, 2, 5, MAX_INDICES};
    static const int n_threads[] = {1, 2, 3, 8, MAX_WORKERS};
    static tally t;

    for (int n = 0; n < 50; n++) {
        attn_control control = {.poll = NULL};
        memset(&t, 0, sizeof t);
        t.n_threads = n_threads[n / 5 % 5];
        attn_parallel_for(sizes[n % 5], t.n_threads, n >= 25, take_index, &t, &control);
        ptrdiff_t n_wrong = 0;
        for (ptrdiff_t i = 0; i < MAX_INDICES; i++) {
            n_wrong += atomic_load(&t.n_taken[i]) != (i < sizes[n % 5]);
        }
        expect(n_wrong == 0, "%td indices, %d threads: %td not taken once",
               sizes[n % 5], t.n_threads, n_wrong);
        expect(!atomic_load(&t.clash), "%td indices, %d threads: workers clash",
               sizes[n % 5], t.n_threads);
    }
}

typedef struct {
    atomic_int n_started, n_wrong;
} runs;

/* Waits until each of four threads has an index of its run, which has three. */
static void
take_index_of_run(void *context, ptrdiff_t index, int worker)
{
    runs *r = context;
    double start = seconds();
    int before = atomic_fetch_add(&r->n_started, 1);

    while (before < 4 && atomic_load(&r->n_started) < 4 && seconds() - start < 60) {
        rest();
    }
    atomic_fetch_add(&r->n_wrong, before < 4 && index != worker * 3);
}

void
test_parallel_for_gives_each_thread_a_run(void)
{
    attn_control control = {.poll = NULL};
    runs r = {0};

    attn_parallel_for(12, 4, true, take_index_of_run, &r, &control);
    expect(atomic_load(&r.n_started) == 12, "%d indices", atomic_load(&r.n_started));
    expect(atomic_load(&r.n_wrong) == 0, "%d threads did not begin with their run",
           atomic_load(&r.n_wrong));
}

/* ---- Polls -------------------------------------------------------------------------- */

enum { N_POLLS = 3 };

static const double patience = 60; /* seconds */

/* Says stop when asked for the N_POLLS-th time. */
static bool
stop_after_some(void *context)
{
    int *n_polls = context;
    return ++*n_polls >= N_POLLS;
}

typedef struct {
    attn_control *control;
    atomic_int n_started;
    atomic_bool stopped; /* the worker was told to */
} long_task;

/* Of two tasks, the caller's ends once the other has begun, and the worker's lasts until
 * it is told to stop. */
static void
run_long_task(void *context, ptrdiff_t index, int worker)
{
    long_task *t = context;
    double start = seconds();

    (void)index;
    atomic_fetch_add(&t->n_started, 1);
    while (worker == 0 && atomic_load(&t->n_started) < 2 &&
           seconds() - start < patience) {
        rest();
    }
    while (worker != 0 && seconds() - start < patience) {
        rest();
        if (attn_should_stop(t->control, false)) {
            atomic_store(&t->stopped, true);
            return;
        }
    }
}

void
test_caller_polls_while_it_waits_for_workers(void)
{
    int n_polls = 0;
    attn_control control = {.poll = stop_after_some, .poll_context = &n_polls};
    long_task t = {.control = &control};

    attn_parallel_for(2, 2, false, run_long_task, &t, &control);
    expect(n_polls == N_POLLS, "%d polls", n_polls);
    expect(atomic_load(&t.stopped), "the worker was not told to stop");
}

/* A problem of n_tasks that would take minutes: its keys are one key. Where there are
 * fewer tasks than threads, each is split over them. */
static void
make_endless(problem *made, ptrdiff_t n_tasks, ptrdiff_t n_queries, attn_dtype dtype)
{
    const spec s = {.dtype = dtype,
                    .batch = {n_tasks},
                    .n_kv_heads = 1,
                    .group = 1,
                    .n_queries = n_queries,
                    .n_keys = 1,
                    .head_dim = 8,
                    .value_dim = 8};
    make_problem(&s, made);
    made->p.n_keys = (ptrdiff_t)1 << 40;
}

static const spec ordinary = {.dtype = ATTN_F32,
                              .n_kv_heads = 2,
                              .group = 2,
                              .n_queries = 80,
                              .n_keys = 520,
                              .head_dim = 16,
                              .value_dim = 16,
                              .causal = true,
                              .weights = DENSE,
                              .lse = DENSE};

/* One task of few rows, which several threads split. */
static const spec decoding = {.dtype = ATTN_F32,
                              .n_kv_heads = 1,
                              .group = 2,
                              .n_queries = 2,
                              .n_keys = 20000,
                              .head_dim = 16,
                              .value_dim = 16,
                              .causal = true,
                              .weights = DENSE,
                              .lse = DENSE};

/* Likewise of as many rows as tile form takes. */
static spec
short_prompt(attn_dtype dtype)
{
    spec s = decoding;

    s.dtype = dtype;
    s.n_queries = 28;
    s.n_keys = 3000;
    return s;
}

static void
expect_early_end(const attn_tier *tier, problem *endless, int n_threads)
{
    int n_polls = 0;
    attn_call call = {.tier = tier,
                      .n_threads = n_threads,
                      .control = {.poll = stop_after_some, .poll_context = &n_polls}};
    double start = seconds();

    int status = attn_attention(&endless->p, &call);
    free_problem(endless);
    expect(status == 0, "%s: status %d", tier->name, status);
    expect(n_polls == N_POLLS, "%s, %d threads: %d polls", tier->name, n_threads,
           n_polls);
    expect(seconds() - start < patience, "%s, %d threads: did not stop", tier->name,
           n_threads);
}

void
test_poll_ends_a_call_early(void)
{
    static const attn_dtype dtypes[] = {ATTN_BF16, ATTN_F32, ATTN_F64};
    problem after, endless;
    const attn_tier *tier;

    make_problem(&ordinary, &after);
    for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
        uint64_t right = run_problem(&after, tier, 3);
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            make_endless(&endless, 4, 64, ATTN_F32);
            expect_early_end(tier, &endless, n_threads);
        }
        for (int n = 0; n < 6; n++) { /* tasks that are split, in tile and row form */
            make_endless(&endless, 1 + n / 3, n % 2 == 0 ? 64 : 3, dtypes[n % 3]);
            expect(is_split(&endless.p, 3), "the endless problem is not split");
            expect_early_end(tier, &endless, 3);
        }
        expect(run_problem(&after, tier, 3) == right, "%s: wrong bits afterwards",
               tier->name);
    }
    free_problem(&after);
}

/* ---- Callers at once ---------------------------------------------------------------- */

enum { N_CALLERS = 20, N_CALLS = 5 }; /* more than the pool has jobs at once */

typedef struct {
    pthread_t thread;
    bool started;
    problem made;
    const attn_tier *tier;
    uint64_t right;
    int n_wrong;
} caller;

static void *
call_repeatedly(void *context)
{
    caller *c = context;

    for (int n = 0; n < N_CALLS; n++) {
        c->n_wrong += run_problem(&c->made, c->tier, 2 + n % 3) != c->right;
    }
    return NULL;
}

/* The first half have more tasks than threads, the others have one, which is split. */
static spec
spec_of_caller(int n)
{
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F64, ATTN_BF16};
    spec s = n < N_CALLERS / 2 ? ordinary
             : n % 2 == 0      ? decoding
                               : short_prompt(ATTN_F32);

    s.dtype = dtypes[n % 3];
    s.n_queries += n % 4;
    return s;
}

void
test_concurrent_callers_get_the_same_bits(void)
{
    static caller callers[N_CALLERS];

    for (int n = 0; n < N_CALLERS; n++) {
        caller *c = &callers[n];
        spec s = spec_of_caller(n);
        make_problem(&s, &c->made);
        expect(is_split(&c->made.p, 2) == (n >= N_CALLERS / 2),
               "caller %d has another number of tasks", n);
        c->tier = n % 5 == 0 ? attn_tier_named("scalar") : attn_tier_at(0);
        c->right = run_problem(&c->made, c->tier, 1);
        c->n_wrong = 0;
    }
    for (int n = 0; n < N_CALLERS; n++) {
        caller *c = &callers[n];
        c->started = pthread_create(&c->thread, NULL, call_repeatedly, c) == 0;
    }
    for (int n = 0; n < N_CALLERS; n++) {
        caller *c = &callers[n];
        expect(c->started && pthread_join(c->thread, NULL) == 0,
               "caller %d did not run", n);
        expect(c->n_wrong == 0, "caller %d got other bits", n);
        free_problem(&c->made);
    }
}

/* ---- Forks -------------------------------------------------------------------------- */

enum { N_IN_CHILD = 3 };

typedef struct {
    problem made[N_IN_CHILD];
    uint64_t right[N_IN_CHILD];
    atomic_bool done;
} fork_test;

static void
call_in_child(void *context)
{
    const fork_test *f = context;
    const attn_tier *tier;

    for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
        for (int n = 0; n < N_IN_CHILD; n++) {
            expect(run_problem(&f->made[n], tier, 3) == f->right[n],
                   "%s: other bits for problem %d in the child", tier->name, n);
        }
    }
}

/* Called in the middle of a call, while workers run. */
static bool
fork_and_stop(void *context)
{
    fork_test *f = context;

    expect_in_child(call_in_child, f);
    atomic_store(&f->done, true);
    return true;
}

static bool
is_done(void *context)
{
    fork_test *f = context;
    return atomic_load(&f->done);
}

static void *
call_until_done(void *context)
{
    attn_call call = {.tier = attn_tier_at(0),
                      .n_threads = 2,
                      .control = {.poll = is_done, .poll_context = context}};
    problem endless;

    make_endless(&endless, 1, 64, ATTN_F32);
    attn_attention(&endless.p, &call);
    free_problem(&endless);
    return NULL;
}

/* The child is born of a call of n_tasks while another one runs, both with workers. */
static void
fork_in_a_call(fork_test *f, ptrdiff_t n_tasks, ptrdiff_t n_queries)
{
    attn_call call = {.tier = attn_tier_at(0),
                      .n_threads = 2,
                      .control = {.poll = fork_and_stop, .poll_context = f}};
    problem endless;
    pthread_t other;

    make_endless(&endless, n_tasks, n_queries, ATTN_F32);
    atomic_store(&f->done, false);
    bool started = pthread_create(&other, NULL, call_until_done, f) == 0;
    expect(started, "the other caller did not start");
    attn_attention(&endless.p, &call);
    expect(atomic_load(&f->done), "poll was not asked");
    if (started) {
        pthread_join(other, NULL);
    }
    free_problem(&endless);
    for (int n = 0; n < N_IN_CHILD; n++) {
        expect(run_problem(&f->made[n], attn_tier_at(0), 3) == f->right[n],
               "other bits for problem %d after the fork", n);
    }
}

void
test_a_child_of_fork_computes_with_its_own_pool(void)
{
    const spec specs[N_IN_CHILD] = {ordinary, decoding, short_prompt(ATTN_F64)};
    fork_test f;

    for (int n = 0; n < N_IN_CHILD; n++) {
        make_problem(&specs[n], &f.made[n]);
        expect(is_split(&f.made[n].p, 3) == (n > 0),
               "problem %d has another number of tasks", n);
        f.right[n] = run_problem(&f.made[n], attn_tier_at(0), 1);
    }
    fork_in_a_call(&f, 4, 64);
    fork_in_a_call(&f, 1, 64); /* split, as the other call is */
    fork_in_a_call(&f, 1, 1);
    for (int n = 0; n < N_IN_CHILD; n++) {
        free_problem(&f.made[n]);
    }
}

/* ---- Floating-point environment ------------------------------------------------------- */

static void
expect_no_influence_of_modes(const problem *made, const attn_tier *tier)
{
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    uint64_t right = run_problem(made, tier, 1);

    for (int n = 0; n < 6; n++) {
        fesetround(modes[n % 3]);
        uint64_t hash = run_problem(made, tier, 1 + n / 3 * 2);
        int mode = fegetround();
        fesetround(FE_TONEAREST);
        expect(hash == right, "%s: other bits in mode %#x", tier->name, modes[n % 3]);
        expect(mode == modes[n % 3], "%s: the mode was %#x and is %#x", tier->name,
               modes[n % 3], mode);
    }
}

/* In whole tasks, and in one that is split. */
void
test_rounding_mode_of_the_caller_does_not_matter(void)
{
    const spec specs[] = {ordinary, short_prompt(ATTN_F32), short_prompt(ATTN_BF16)};
    const attn_tier *tier;

    for (size_t n = 0; n < sizeof specs / sizeof specs[0]; n++) {
        problem made;
        make_problem(&specs[n], &made);
        for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
            expect_no_influence_of_modes(&made, tier);
        }
        free_problem(&made);
    }
}
