/* Packed sequences: each as it is alone, on every tier and for several threads. */
#include "core/attention.h"

#include "support/check.h"
#include "support/problem.h"

#include <string.h>

enum { MAX_SEQUENCES = 6, MAX_ROWS = 300 };

/* Cuts n rows into sequences, some of them empty. */
static void
cut_rows(uint64_t *state, ptrdiff_t n_sequences, ptrdiff_t n, int64_t *starts)
{
    starts[0] = 0;
    for (ptrdiff_t b = 1; b < n_sequences; b++) {
        ptrdiff_t left = n - (ptrdiff_t)starts[b - 1];
        ptrdiff_t most = random_below(state, 3) == 0 ? 5 : left;
        starts[b] =
            starts[b - 1] + random_below(state, 1 + (most < left ? most : left));
    }
    starts[n_sequences] = n;
}

static ptrdiff_t
longest(ptrdiff_t n_sequences, const int64_t *starts)
{
    ptrdiff_t most = 0;

    for (ptrdiff_t b = 0; b < n_sequences; b++) {
        ptrdiff_t length = attn_packed_length(starts, b, 0);
        most = length > most ? length : most;
    }
    return most;
}

/* Advances an array by rows of it. */
static void
skip_rows(attn_array *array, int64_t n)
{
    array->data += (ptrdiff_t)n * array->row_stride;
}

/* Makes a problem of batch 1 one of packed sequences. */
static void
pack(problem *made, ptrdiff_t n_sequences, const attn_packed *starts)
{
    attn_problem *p = &made->p;

    p->batch.n = p->batch.shape[0] = n_sequences;
    p->batch.n_axes = 1;
    p->packed = starts;
    p->n_queries = longest(n_sequences, starts->queries);
    p->n_keys = longest(n_sequences, starts->keys);
    p->query.batch_stride[0] = p->key.batch_stride[0] = p->value.batch_stride[0] = 0;
    p->output.batch_stride[0] = p->lse.batch_stride[0] = 0;
    p->sinks.batch_stride[0] = 0;
}

/* What a sequence's results are in those of all, as a problem of its own. */
static problem
alone(const problem *all, ptrdiff_t b, const int64_t *queries, const int64_t *keys)
{
    problem one = *all;

    one.p.n_queries = attn_packed_length(queries, b, 0);
    one.p.n_keys = attn_packed_length(keys, b, 0);
    skip_rows(&one.p.query, queries[b]);
    skip_rows(&one.p.output, queries[b]);
    skip_rows(&one.p.lse, queries[b]);
    skip_rows(&one.p.key, keys[b]);
    skip_rows(&one.p.value, keys[b]);
    skip_rows(&one.p.key_scale, keys[b]);
    skip_rows(&one.p.value_scale, keys[b]);
    return one;
}

static void
expect_alone(const problem *made, const attn_tier *tier, ptrdiff_t n_sequences,
             const int64_t *queries, const int64_t *keys)
{
    const attn_packed starts = {queries, keys};
    problem packed = *made;

    pack(&packed, n_sequences, &starts);
    for (ptrdiff_t b = 0; b < n_sequences; b++) {
        problem one = alone(made, b, queries, keys);
        attn_call call = {.tier = tier, .n_threads = 1 + (int)b % 3};
        reset_results(&made->p);
        expect(attn_attention(&packed.p, &call) == 0, "out of memory");
        uint64_t together = hash_results(&one.p);
        expect(run_problem(&one, tier, 1) == together,
               "%s: other bits for sequence %td of %td queries and %td keys",
               tier->name, b, one.p.n_queries, one.p.n_keys);
    }
}

void
test_packed_sequences_have_the_bits_of_each_alone(void)
{
    uint64_t state = 31;
    const attn_tier *tier;

    for (int n = 0; n < 24; n++) {
        spec s = draw_spec(&state, (attn_dtype)(n % N_FLOATING));
        s.key_scales = n / N_FLOATING % 3 == 1;
        s.value_scales = n / N_FLOATING % 3 > 0;
        ptrdiff_t n_sequences = 1 + random_below(&state, MAX_SEQUENCES);
        int64_t queries[MAX_SEQUENCES + 1], keys[MAX_SEQUENCES + 1];
        problem made;
        s.batch[0] = s.batch[1] = 1;
        s.n_queries = random_below(&state, MAX_ROWS);
        s.n_keys = random_below(&state, 3 * MAX_ROWS);
        s.query = s.key = s.value = s.output = s.lse = n % 2 == 0 ? DENSE : SPREAD;
        s.mask = s.bias = s.weights = ABSENT;
        s.offsets = s.lengths = false;
        s.special = ORDINARY;
        make_problem(&s, &made);
        cut_rows(&state, n_sequences, s.n_queries, queries);
        cut_rows(&state, n_sequences, s.n_keys, keys);
        for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
            expect_alone(&made, tier, n_sequences, queries, keys);
        }
        free_problem(&made);
    }
}
