/* Keys and values in pages have the bits that they have in one piece. */
#include "core/extras.h"

#include "core/tuning.h"
#include "support/check.h"
#include "support/pages.h"
#include "support/problem.h"

enum { N_PROBLEMS = 32 };

/* Drawn, but for some whose keys are prefetched, as they are beyond the second-level cache: of
 * each dtype with one row and with four. */
static spec
spec_at(int n, uint64_t *state)
{
    static const ptrdiff_t keys[] = {1, 127, 128, 129, 300, 512, 640, 1100};
    spec s = draw_spec(state, (attn_dtype)(n % N_FLOATING));

    s.n_keys = keys[random_below(state, 8)];
    s.special = n % 5 == 2   ? NAN_WHERE_HIDDEN
                : n % 5 == 4 ? NAN_WHERE_VISIBLE
                             : ORDINARY;
    if (n % 2 == 1) {
        s.n_queries = 1 + random_below(state, 2);
        s.group = 1 + random_below(state, 4);
    }
    if (n % 16 >= 12) {
        s = (spec){.name = "far", .dtype = s.dtype, .n_keys = 1100 + 10 * n};
        s.n_kv_heads = 2;
        s.group = s.n_queries = 1 + n / 16;
        s.head_dim = s.value_dim = 128;
    }
    s.key_scales = n / N_FLOATING % 3 == 1;
    s.value_scales = n / N_FLOATING % 3 > 0;
    return s;
}

static uint64_t
run_either_way(const problem *made, const attn_tier *tier, int n_threads, bool once)
{
    bool before = attn_set_tuning(ATTN_TUNE_READ_ONCE, once);
    uint64_t hash = run_problem(made, tier, n_threads);

    attn_set_tuning(ATTN_TUNE_READ_ONCE, before);
    return hash;
}

void
test_keys_in_pages_have_the_bits_of_one_piece(void)
{
    double work = attn_set_work_per_thread(1);
    uint64_t state = 41;
    const attn_tier *tier;

    for (int n = 0; n < N_PROBLEMS; n++) {
        spec s = spec_at(n, &state);
        problem made;
        make_problem(&s, &made);
        for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
            int n_threads = 1 + (n + t) % 3;
            bool once = n >= N_PROBLEMS / 2;
            paged to;
            uint64_t whole = run_either_way(&made, tier, n_threads, once);
            put_in_pages(&made.p, &state, &to);
            expect(run_either_way(&made, tier, n_threads, once) == whole,
                   "%s: other bits in pages of problem %d, \"%s\" of %s, %td keys",
                   tier->name, n, s.name, dtype_name(s.dtype), s.n_keys);
            put_back(&made.p, &to);
        }
        free_problem(&made);
    }
    attn_set_work_per_thread(work);
}
