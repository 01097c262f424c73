/* Failing allocations and threads, through the core's hooks. */
#include "core/arrangement.h"
#include "core/hooks.h"
#include "core/workspace.h"
#include "support/check.h"
#include "support/problem.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- Hooks that count, and fail when told ------------------------------------------- */

/* Calls number first_failing and the n_failing - 1 after it fail. */
static struct {
    int first_failing, n_failing;
    int n_allocations, n_threads; /* calls */
    int n_failed;
    int n_held; /* blocks allocated and not yet freed */
    size_t largest;
} count;

static attn_hooks original;

static bool
is_to_fail(int call)
{
    bool fails =
        call >= count.first_failing && call - count.first_failing < count.n_failing;
    count.n_failed += fails;
    return fails;
}

static void *
allocate(size_t size)
{
    count.largest = size > count.largest ? size : count.largest;
    if (is_to_fail(count.n_allocations++)) {
        return NULL;
    }
    count.n_held++;
    return original.allocate(size);
}

static void
release(void *block)
{
    count.n_held--;
    original.free(block);
}

static int
create_thread(void *(*start)(void *), void *argument)
{
    return is_to_fail(count.n_threads++) ? -1 : original.create_thread(start, argument);
}

static void
reset_count(int first_failing, int n_failing)
{
    memset(&count, 0, sizeof count);
    count.first_failing = first_failing;
    count.n_failing = n_failing;
}

/* ---- Problems large enough for three threads ------------------------------------------ */

static const spec specs[] = {
    {.name = "tile form",
     .dtype = ATTN_F32,
     .n_kv_heads = 2,
     .group = 2,
     .n_queries = 70,
     .n_keys = 530,
     .head_dim = 10,
     .value_dim = 9,
     .causal = true,
     .mask = DENSE,
     .bias = DENSE,
     .bias_dtype = ATTN_F16,
     .weights = DENSE,
     .lse = DENSE},
    {.name = "row form",
     .dtype = ATTN_F64,
     .n_kv_heads = 4,
     .group = 2,
     .n_queries = 2,
     .n_keys = 3000,
     .head_dim = 20,
     .value_dim = 20,
     .value = TRANSPOSED},
    {.name = "split, tile form",
     .dtype = ATTN_F32,
     .n_kv_heads = 1,
     .group = 1,
     .n_queries = 30,
     .n_keys = 3000,
     .head_dim = 10,
     .value_dim = 9,
     .mask = DENSE,
     .weights = DENSE,
     .lse = DENSE},
    {.name = "split, row form",
     .dtype = ATTN_F64,
     .batch = {2},
     .n_kv_heads = 1,
     .group = 4,
     .n_queries = 1,
     .n_keys = 6000,
     .head_dim = 20,
     .value_dim = 20,
     .lengths = true,
     .lse = DENSE},
    {.name = "split, several rounds",
     .dtype = ATTN_F32,
     .n_kv_heads = 1,
     .group = 2,
     .n_queries = 1,
     .n_keys = 26000,
     .head_dim = 20,
     .value_dim = 20},
    {.name = "split, bfloat16, tile form",
     .dtype = ATTN_BF16,
     .n_kv_heads = 2,
     .group = 1,
     .n_queries = 15,
     .n_keys = 2999,
     .head_dim = 15,
     .value_dim = 17,
     .causal = true,
     .bias = DENSE,
     .bias_dtype = ATTN_F32,
     .weights = DENSE},
    {.name = "split, bfloat16, row form",
     .dtype = ATTN_BF16,
     .n_kv_heads = 1,
     .group = 3,
     .n_queries = 1,
     .n_keys = 15001,
     .head_dim = 16,
     .value_dim = 16,
     .sinks = true,
     .weights = DENSE,
     .lse = DENSE},
    {.name = "float16",
     .dtype = ATTN_F16,
     .n_kv_heads = 3,
     .group = 1,
     .n_queries = 65,
     .n_keys = 300,
     .head_dim = 16,
     .value_dim = 16},
};

enum { N_SPECS = sizeof specs / sizeof specs[0], N_THREADS = 3 };

/* ---- Allocations -------------------------------------------------------------------- */

/* Counts allocations, and makes some fail, until the hook is `original` again. */
static void
count_allocations(void)
{
    attn_workspace_free_all();
    original = attn_hook;
    attn_hook.allocate = allocate;
    attn_hook.free = release;
}

/* One call some of whose allocations fail; returns whether any did. The call must fail
 * where no workspace can be had, and only there. One that is to be split and cannot be asks
 * once more, for one thread for each task. */
static bool
call_with_failures(const problem *made, const attn_tier *tier, uint64_t right,
                   int first_failing, int n_failing)
{
    attn_call call = {.tier = tier, .n_threads = N_THREADS};

    attn_workspace_free_all();
    reset_count(first_failing, n_failing);
    reset_results(&made->p);
    uint64_t untouched = hash_results(&made->p);
    int status = attn_attention(&made->p, &call);
    uint64_t hash = hash_results(&made->p);
    bool fails = first_failing == 0 && n_failing > is_split(&made->p, N_THREADS);
    expect(status == (fails ? -1 : 0),
           "%s: status %d where %d allocations from %d fail", tier->name, status,
           n_failing, first_failing);
    expect(hash == (fails ? untouched : right),
           "%s: wrong bits where %d allocations from %d fail", tier->name, n_failing,
           first_failing);
    attn_workspace_free_all();
    expect(count.n_held == 0, "%s: %d workspaces leaked where allocation %d fails",
           tier->name, count.n_held, first_failing);
    return count.n_failed > 0;
}

/* n_failing allocations in a row, starting from each there is. */
static void
fail_each_allocation(const problem *made, const attn_tier *tier, int n_failing)
{
    uint64_t right = run_problem(made, tier, 1);
    int k = 0;

    while (call_with_failures(made, tier, right, k, n_failing)) {
        k++;
    }
    /* For each thread; for combining and for partial results, where tasks are split. */
    expect(k == N_THREADS + (is_split(&made->p, N_THREADS) ? 2 : 0),
           "%s: %d allocations", tier->name, k);
    reset_count(INT_MAX, 0);
    expect(run_problem(made, tier, N_THREADS) == right,
           "%s: wrong bits after failed allocations", tier->name);
}

void
test_failing_allocations_mean_fewer_threads_or_an_error(void)
{
    const attn_tier *tier;

    count_allocations();
    for (int n = 0; n < N_SPECS; n++) {
        problem made;
        make_problem(&specs[n], &made);
        for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
            fail_each_allocation(&made, tier, 1);
            fail_each_allocation(&made, tier, 2);
            fail_each_allocation(&made, tier, INT_MAX);
        }
        free_problem(&made);
    }
    attn_workspace_free_all();
    attn_hook = original;
}

void
test_large_workspaces_are_freed_at_once(void)
{
    const spec small = specs[0];
    spec large = specs[0];
    problem made;

    count_allocations();
    reset_count(INT_MAX, 0);
    make_problem(&small, &made);
    run_problem(&made, attn_tier_at(0), N_THREADS);
    expect(count.n_held == N_THREADS, "%d small workspaces are kept", count.n_held);
    run_problem(&made, attn_tier_at(0), N_THREADS);
    expect(count.n_allocations == N_THREADS, "workspaces are not used again");
    attn_workspace_free_all();
    free_problem(&made);

    large.dtype = ATTN_F64;
    large.head_dim = 6300;
    make_problem(&large, &made);
    run_problem(&made, attn_tier_at(0), N_THREADS);
    expect(count.largest > 3 << 19, "the large workspace is small");
    expect(count.n_held == 0, "%d large workspaces are kept", count.n_held);
    free_problem(&made);
    attn_hook = original;
}

void
test_sizes_of_workspaces_do_not_wrap(void)
{
    const attn_tier *tier;
    const size_t query = (size_t)ATTN_MAX_DIM * 32; /* of a task so large */

    count_allocations();
    for (int n = 0; n < N_SPECS; n++) {
        problem made;
        make_problem(&specs[n], &made);
        made.p.n_queries = 1000;
        made.p.head_dim = made.p.value_dim = ATTN_MAX_DIM;
        attn_choose_task_rows(&made.p, N_THREADS);
        for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
            attn_call call = {.tier = tier, .n_threads = N_THREADS};
            reset_count(0, INT_MAX);
            int status = attn_attention(&made.p, &call);
            size_t size = (size_t)attn_storage_of(made.p.arithmetic)->bytes;
            expect(status == -1, "%s: status %d", tier->name, status);
            expect(count.largest > 2 * query * size, "%s: %zu bytes wanted", tier->name,
                   count.largest);
        }
        free_problem(&made);
    }
    attn_hook = original;
}

/* ---- Threads ------------------------------------------------------------------------ */

typedef struct {
    const problem *made;
    uint64_t right;
    int first_failing, n_failing;
} thread_failure;

/* How often a call wants all threads: once, or where a single task is split for each round
 * of chunks; several have all of theirs in one. Of problems that see all keys up to each
 * batch's length. */
static ptrdiff_t
count_rounds(const attn_problem *p)
{
    const ptrdiff_t round = ATTN_PARTIALS_PER_THREAD * N_THREADS * ATTN_CHUNK;
    ptrdiff_t n_rounds = 0;

    for (ptrdiff_t b = 0; b < p->batch.n; b++) {
        ptrdiff_t length = (ptrdiff_t)position_of(p, b, 0) + p->n_queries;
        n_rounds += (length + round - 1) / round;
    }
    return is_split(p, N_THREADS) && attn_attention_tasks(p) == 1 ? n_rounds : 1;
}

/* Expects that each round tried to make up for the threads there were not, up to the first
 * failure. */
static void
expect_threads_tried(const thread_failure *f)
{
    int n_tried = 0, n_failed = 0;

    for (ptrdiff_t n = count_rounds(&f->made->p); n > 0; n--) {
        bool fails = false;
        while (!fails && n_tried - n_failed < N_THREADS - 1) {
            fails = n_tried >= f->first_failing &&
                    n_tried - f->first_failing < f->n_failing;
            n_tried++;
            n_failed += fails;
        }
    }
    expect(count.n_failed == n_failed, "%d threads failed", count.n_failed);
    expect(count.n_threads == n_tried, "%d threads were tried where thread %d fails",
           count.n_threads, f->first_failing);
}

/* In a child of fork, whose pool has no workers yet. */
static void
call_without_threads(void *context)
{
    const thread_failure *f = context;

    reset_count(f->first_failing, f->n_failing);
    expect(run_problem(f->made, attn_tier_at(0), N_THREADS) == f->right,
           "wrong bits where thread %d fails", f->first_failing);
    expect_threads_tried(f);

    int n_workers = count.n_threads - count.n_failed;
    reset_count(INT_MAX, 0);
    expect(run_problem(f->made, attn_tier_at(0), N_THREADS) == f->right,
           "wrong bits after thread %d failed", f->first_failing);
    expect(count.n_threads == N_THREADS - 1 - n_workers,
           "%d threads were made up for after thread %d failed", count.n_threads,
           f->first_failing);
}

void
test_failing_threads_mean_fewer_threads(void)
{
    original = attn_hook;
    attn_hook.create_thread = create_thread;
    for (int n = 0; n < N_SPECS; n++) {
        problem made;
        make_problem(&specs[n], &made);
        uint64_t right = run_problem(&made, attn_tier_at(0), 1);
        for (int k = 0; k < N_THREADS; k++) {
            thread_failure one = {&made, right, k, 1};
            thread_failure all = {&made, right, k, INT_MAX};
            expect_in_child(call_without_threads, &one);
            expect_in_child(call_without_threads, &all);
        }
        free_problem(&made);
    }
    attn_hook = original;
}
