/* Runs lists of problems on every tier. */
#include "support/golden.h"

#include "core/tuning.h"
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

/* How bfloat16 is multiplied on a tier: as everywhere, by dot products, by a matrix unit. */
enum { PORTABLE, DOTS, UNIT, N_WAYS };

static int
way_of(const corpus *c, const attn_tier *tier)
{
    if (tier->bf16 == NULL) {
        return PORTABLE;
    }
    return strncmp(tier->name, "amx", 3) != 0 ? DOTS
           : c->unit_golden != 0              ? UNIT
                                              : PORTABLE;
}

/* Has a tier before this one the same kernels, but for bfloat16? */
static bool
is_repeated(const corpus *c, const attn_tier *tier)
{
    int i = 0;

    while (attn_tier_at(i)->f32 != tier->f32 ||
           (c->integers && (attn_tier_at(i)->integer != tier->integer ||
                            attn_tier_at(i)->integer_unit != tier->integer_unit ||
                            attn_tier_at(i)->bytes != tier->bytes ||
                            attn_tier_at(i)->byte_unit != tier->byte_unit))) {
        i++;
    }
    return attn_tier_at(i) != tier;
}

/* Runs the corpus and compares the hashes with those so far, n_problems of each way; 0 where
 * there is none. */
static void
run_corpus(const corpus *c, const attn_tier *tier, int n_threads, uint64_t *hashes)
{
    const uint64_t goldens[N_WAYS] = {c->golden, c->native_golden, c->unit_golden};
    uint64_t portable = HASH_START, native = HASH_START;
    int way = way_of(c, tier);

    for (int n = 0; n < c->n_problems; n++) {
        bool is_native = way != PORTABLE && c->dtype(n) == ATTN_BF16;
        uint64_t *expected = &hashes[(is_native ? way : PORTABLE) * c->n_problems + n];
        if (!is_native && is_repeated(c, tier)) {
            portable = hash_word(portable, hashes[n]);
            continue;
        }
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
    if (way != PORTABLE) {
        if (native != HASH_START) {
            note("%016llx  its own products of bfloat16", (unsigned long long)native);
        }
        expect(native == goldens[way], "that hash is not %016llx",
               (unsigned long long)goldens[way]);
    }
}

/* Runs the corpus on a tier with either kind of tiles. */
static void
run_with_all_tiles(const corpus *c, const attn_tier *tier, int n_threads,
                   uint64_t *hashes)
{
    bool former = attn_set_tuning(ATTN_TUNE_MANY_ROWS, false);

    run_corpus(c, tier, n_threads, hashes);
    if (tier->f32->linear.many_rows != NULL) {
        attn_set_tuning(ATTN_TUNE_MANY_ROWS, true);
        run_corpus(c, tier, n_threads, hashes);
    }
    attn_set_tuning(ATTN_TUNE_MANY_ROWS, former);
}

void
check_corpus(const corpus *c)
{
    uint64_t *hashes = calloc(N_WAYS * (size_t)c->n_problems, sizeof *hashes);
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
                run_with_all_tiles(c, tier, n_threads, hashes);
            }
        }
    }
    attn_hook.create_thread = start_thread;
    attn_set_work_per_thread(work);
    free(hashes);
    expect(n_started > 0, "no problem used several threads");
}
