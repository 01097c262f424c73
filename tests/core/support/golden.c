/* Runs lists of problems on every tier. */
#include "support/golden.h"

#include "core/hooks.h"
#include "support/check.h"
#include "support/problem.h"

#include <stdlib.h>
#include <string.h>

static int (*start_thread)(void *(*start)(void *), void *argument);
static int n_started; /* threads, by count_threads */

static int
count_threads(void *(*start)(void *), void *argument)
{
    n_started++;
    return start_thread(start, argument);
}

/* Runs the corpus and compares the hashes with those so far, of which there are n_problems
 * portable ones, then as many of native dot products; 0 where there is none. */
static void
run_corpus(const corpus *c, const attn_tier *tier, int n_threads, uint64_t *hashes)
{
    uint64_t portable = HASH_START, native = HASH_START;

    for (int n = 0; n < c->n_problems; n++) {
        bool is_native = tier->bf16 != NULL && c->dtype(n) == ATTN_BF16;
        uint64_t *expected = &hashes[is_native ? c->n_problems + n : n];
        uint64_t one = c->run(n, tier, n_threads);
        *expected = *expected == 0 ? one : *expected;
        expect(one == *expected, "problem %d, \"%s\" of %s: other bits on %s", n,
               c->name(n), dtype_name(c->dtype(n)), tier->name);
        portable = hash_word(portable, hashes[n]);
        native = is_native ? hash_word(native, one) : native;
    }
    note("%016llx  %s, %d threads", (unsigned long long)portable, tier->name,
         n_threads);
    expect(portable == c->golden, "the hash is not %016llx",
           (unsigned long long)c->golden);
    if (tier->bf16 != NULL) {
        if (native != HASH_START) {
            note("%016llx  its dot products of bfloat16", (unsigned long long)native);
        }
        expect(native == c->native_golden, "that hash is not %016llx",
               (unsigned long long)c->native_golden);
    }
}

void
check_corpus(const corpus *c)
{
    uint64_t *hashes = calloc(2 * (size_t)c->n_problems, sizeof *hashes);
    const attn_tier *tier = attn_tier_named("scalar");

    if (hashes == NULL) {
        abort();
    }
    start_thread = attn_hook.create_thread;
    attn_hook.create_thread = count_threads;
    double work = attn_set_work_per_thread(1); /* small problems use threads, too */
    run_corpus(c, tier, 1, hashes);
    for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            if (n_threads > 1 || strcmp(tier->name, "scalar") != 0) {
                run_corpus(c, tier, n_threads, hashes);
            }
        }
    }
    attn_hook.create_thread = start_thread;
    attn_set_work_per_thread(work);
    free(hashes);
    expect(n_started > 0, "no problem used several threads");
}
