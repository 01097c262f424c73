/* Statistics of weights: the same bits from every tier and number of threads. What they
 * are is compared with the weights in tests/test_statistics.py. */
#include "core/statistics.h"

#include "support/check.h"
#include "support/golden.h"
#include "support/problem.h"

/* Of the problems below, as golden.h explains. */
#define GOLDEN UINT64_C(0x4373d8f66df38161)
#define NATIVE_GOLDEN UINT64_C(0xe58dc6ddcdcd5e85)
#define UNIT_GOLDEN UINT64_C(0xb005d390d692bc1b)

enum { N_DRAWN = 60, N_LISTED = 4, TOP_K = 5 };

/* Some have more queries than a task has rows. */
static const spec listed[] = {
    {.name = "several blocks",
     .n_kv_heads = 1,
     .group = 2,
     .n_queries = 200,
     .n_keys = 300,
     .head_dim = 20,
     .value_dim = 7},
    {.name = "causal, of batches",
     .batch = {2},
     .n_kv_heads = 2,
     .group = 1,
     .n_queries = 130,
     .n_keys = 700,
     .head_dim = 8,
     .causal = true,
     .lengths = true},
    {.name = "NaN in some keys",
     .n_kv_heads = 1,
     .group = 3,
     .n_queries = 65,
     .n_keys = 260,
     .head_dim = 9,
     .causal = true,
     .mask = DENSE,
     .special = NAN_WHERE_VISIBLE},
    {.name = "more dimensions than rows of a task allow",
     .n_kv_heads = 1,
     .group = 1,
     .n_queries = 70,
     .n_keys = 40,
     .head_dim = 2600,
     .has_window = true,
     .window_left = 9,
     .window_right = 12},
};

static spec
spec_at(int n)
{
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};
    uint64_t state = (uint64_t)n + 1000;
    spec s;

    if (n < N_DRAWN) {
        s = draw_spec(&state, dtypes[n % 4]);
        s.n_queries += n % 5 == 0 ? 60 : 0;
    } else {
        s = listed[(n - N_DRAWN) % N_LISTED];
        s.dtype = dtypes[(n - N_DRAWN) / N_LISTED];
    }
    s.weights = ABSENT;
    return s;
}

static const char *
name_of(int n)
{
    return spec_at(n).name;
}

static attn_dtype
dtype_of(int n)
{
    return spec_at(n).dtype;
}

/* The hash of one array, n_rows of n_columns. */
static uint64_t
hash_array(const attn_problem *p, const attn_array *array, ptrdiff_t n_rows,
           ptrdiff_t n_columns)
{
    attn_problem q = *p;

    q.output = *array;
    q.weights = NULL;
    q.lse.data = NULL;
    q.n_queries = n_rows;
    q.value_dim = n_columns;
    return hash_results(&q);
}

static uint64_t
run_one(int n, const attn_tier *tier, int n_threads)
{
    attn_call call = {.tier = tier, .n_threads = n_threads};
    attn_statistics found = {.top_k = TOP_K};
    spec s = spec_at(n);
    problem made;

    make_problem(&s, &made);
    attn_problem *p = &made.p;
    ptrdiff_t n_heads = p->n_kv_heads * p->group;
    add_reals(&made, &found.received, DENSE, p->arithmetic, n_heads, p->n_keys, 1, 1);
    add_reals(&made, &found.entropy, DENSE, p->arithmetic, n_heads, p->n_queries, 1, 2);
    add_reals(&made, &found.distance, DENSE, p->arithmetic, n_heads, p->n_queries, 1,
              3);
    add_reals(&made, &found.top_weights, DENSE, p->arithmetic, n_heads, p->n_queries,
              TOP_K, 4);
    add_reals(&made, &found.top_keys, DENSE, ATTN_F64, n_heads, p->n_queries, TOP_K, 5);
    reset_results(p);
    int status = attn_measure(p, &found, &call);
    uint64_t hash = hash_results(p);
    hash = hash_word(hash, hash_array(p, &found.received, p->n_keys, 1));
    hash = hash_word(hash, hash_array(p, &found.entropy, p->n_queries, 1));
    hash = hash_word(hash, hash_array(p, &found.distance, p->n_queries, 1));
    hash = hash_word(hash, hash_array(p, &found.top_weights, p->n_queries, TOP_K));
    hash = hash_word(hash, hash_array(p, &found.top_keys, p->n_queries, TOP_K));
    free_problem(&made);
    return status == 0 ? hash : 0;
}

void
test_every_tier_gives_statistics_the_same_bits(void)
{
    static const corpus c = {.n_problems = N_DRAWN + 4 * N_LISTED,
                             .name = name_of,
                             .dtype = dtype_of,
                             .run = run_one,
                             .golden = GOLDEN,
                             .native_golden = NATIVE_GOLDEN,
                             .unit_golden = UNIT_GOLDEN};
    check_corpus(&c);
}
