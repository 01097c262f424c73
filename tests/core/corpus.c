/* Whole problems: the same bits from every tier and number of threads, the results of
 * plain loops, and no influence of what must have none. */
#include "check.h"
#include "plain.h"
#include "problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The hash of the corpus below. The scalar tier gives it on any machine: inputs come from
 * integers, and every operation is IEEE 754's. It was printed by this test; it changes
 * with the corpus and with the bit contract (attention.h), and with nothing else. */
#define GOLDEN UINT64_C(0)

#define N_DRAWN 40 /* problems of each dtype */

#define SMALL .n_kv_heads = 2, .group = 2, .n_queries = 20, .n_keys = 150, \
              .head_dim = 24, .value_dim = 20
#define WIDE .n_kv_heads = 2, .group = 2, .n_queries = 150, .n_keys = 600, \
             .head_dim = 33, .value_dim = 17
#define DECODE .n_kv_heads = 3, .group = 4, .n_queries = 1, .n_keys = 1300, \
               .head_dim = 40, .value_dim = 36

static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F64, ATTN_F16, ATTN_BF16};

/* Each option on its own and some together; run in every dtype. */
static const spec listed[] = {
    {.name = "plain", SMALL},
    {.name = "plain, several tiles and chunks", WIDE, .weights = DENSE, .lse = DENSE},
    {.name = "plain, decoding", DECODE, .weights = DENSE, .lse = DENSE},
    {.name = "causal", WIDE, .causal = true},
    {.name = "causal, top left", WIDE, .causal = true, .top_left = true},
    {.name = "causal, more queries than keys", .n_kv_heads = 1, .group = 1,
     .n_queries = 150, .n_keys = 40, .head_dim = 8, .value_dim = 8, .causal = true,
     .weights = DENSE, .lse = DENSE},
    {.name = "window", WIDE, .has_window = true, .window_left = 40, .window_right = 3,
     .weights = DENSE},
    {.name = "window to the left", WIDE, .has_window = true, .window_left = 200,
     .window_right = -1, .causal = true},
    {.name = "offsets", WIDE, .batch = {2, 2}, .offsets = true, .causal = true},
    {.name = "lengths", DECODE, .batch = {2, 2}, .lengths = true, .causal = true},
    {.name = "mask", WIDE, .mask = DENSE, .weights = DENSE, .lse = DENSE},
    {.name = "mask, decoding", DECODE, .mask = DENSE, .weights = DENSE, .lse = DENSE},
    {.name = "padding mask", WIDE, .batch = {2}, .mask = ONE_ROW},
    {.name = "mask of rows", SMALL, .mask = ONE_COLUMN, .lse = DENSE},
    {.name = "mask of one element", SMALL, .mask = ONE_ELEMENT},
    {.name = "mask, reversed", SMALL, .mask = REVERSED},
    {.name = "mask, spread", SMALL, .mask = SPREAD},
    {.name = "mask, transposed", SMALL, .mask = TRANSPOSED},
    {.name = "bias of float", WIDE, .bias = DENSE, .bias_dtype = ATTN_F32},
    {.name = "bias of double", WIDE, .bias = SPREAD, .bias_dtype = ATTN_F64,
     .bias_hides = true, .weights = DENSE, .lse = DENSE},
    {.name = "bias of float16", SMALL, .bias = DENSE, .bias_dtype = ATTN_F16},
    {.name = "bias of bfloat16", DECODE, .bias = REVERSED, .bias_dtype = ATTN_BF16,
     .bias_hides = true, .weights = DENSE, .lse = DENSE},
    {.name = "bias of keys", SMALL, .bias = ONE_ROW, .bias_dtype = ATTN_F32},
    {.name = "bias of rows", SMALL, .bias = ONE_COLUMN, .bias_dtype = ATTN_F64,
     .bias_hides = true},
    {.name = "softcap", WIDE, .softcap = 0.5, .weights = DENSE},
    {.name = "softcap, decoding", DECODE, .softcap = 2, .scale = 3},
    {.name = "sinks", WIDE, .sinks = true, .weights = DENSE, .lse = DENSE},
    {.name = "sinks, rows that see nothing", DECODE, .sinks = true, .lengths = true,
     .batch = {3}, .mask = DENSE, .lse = DENSE, .weights = DENSE},
    {.name = "scale 0", SMALL, .scale = 1e-300, .lse = DENSE},
    {.name = "negative scale", SMALL, .scale = -0.7},
    {.name = "huge logits", WIDE, .scale = 1e18, .weights = DENSE},
    {.name = "NaN in hidden keys", WIDE, .lengths = true, .batch = {2}, .mask = ONE_ROW,
     .special = NAN_WHERE_HIDDEN, .weights = DENSE, .lse = DENSE},
    {.name = "NaN in hidden keys, decoding", DECODE, .mask = ONE_HEAD,
     .special = NAN_WHERE_HIDDEN, .weights = DENSE, .lse = DENSE},
    {.name = "NaN in some keys", WIDE, .causal = true, .mask = DENSE,
     .special = NAN_WHERE_VISIBLE, .weights = DENSE, .lse = DENSE},
    {.name = "NaN in some keys, decoding", DECODE, .mask = DENSE,
     .special = NAN_WHERE_VISIBLE, .weights = DENSE, .lse = DENSE},
    {.name = "infinite queries", SMALL, .causal = true, .special = INFINITE_QUERIES,
     .weights = DENSE, .lse = DENSE},
    {.name = "infinite queries, sinks", DECODE, .special = INFINITE_QUERIES,
     .sinks = true, .weights = DENSE, .lse = DENSE},
    {.name = "transposed", WIDE, .query = TRANSPOSED, .key = TRANSPOSED,
     .value = TRANSPOSED, .output = TRANSPOSED, .weights = TRANSPOSED,
     .lse = HEADS_INSIDE},
    {.name = "reversed", WIDE, .query = REVERSED, .key = REVERSED, .value = REVERSED,
     .output = REVERSED, .weights = REVERSED, .lse = REVERSED},
    {.name = "spread, decoding", DECODE, .query = SPREAD, .key = SPREAD,
     .value = SPREAD, .output = SPREAD, .weights = SPREAD, .lse = SPREAD},
    {.name = "heads inside", WIDE, .batch = {2}, .query = HEADS_INSIDE,
     .key = HEADS_INSIDE, .value = HEADS_INSIDE, .output = HEADS_INSIDE},
    {.name = "broadcast", SMALL, .batch = {2, 3}, .query = ONE_BATCH, .key = ONE_ROW,
     .value = ONE_ELEMENT},
    {.name = "one column", SMALL, .query = ONE_COLUMN, .key = ONE_COLUMN},
    {.name = "no head dimension", .n_kv_heads = 1, .group = 2, .n_queries = 9,
     .n_keys = 20, .value_dim = 5, .lse = DENSE},
    {.name = "no value dimension", .n_kv_heads = 1, .group = 2, .n_queries = 9,
     .n_keys = 20, .head_dim = 5, .lse = DENSE, .weights = DENSE},
    {.name = "no keys", .n_kv_heads = 1, .group = 2, .n_queries = 9, .head_dim = 5,
     .value_dim = 5, .lse = DENSE},
    {.name = "no queries", .n_kv_heads = 1, .group = 2, .n_keys = 9, .head_dim = 5,
     .value_dim = 5, .lse = DENSE},
    {.name = "one of each", .n_kv_heads = 1, .group = 1, .n_queries = 1, .n_keys = 1,
     .head_dim = 1, .value_dim = 1, .lse = DENSE, .weights = DENSE},
};

enum {
    N_DTYPES = sizeof dtypes / sizeof dtypes[0],
    N_LISTED = sizeof listed / sizeof listed[0],
    N_SPECS = (N_LISTED + N_DRAWN) * N_DTYPES
};

/* The corpus' problem n < N_SPECS. */
static spec
spec_at(int n)
{
    attn_dtype dtype = dtypes[n % N_DTYPES];
    int k = n / N_DTYPES;
    uint64_t state = (uint64_t)n;

    if (k >= N_LISTED) {
        return draw_spec(&state, dtype);
    }
    spec s = listed[k];
    s.dtype = dtype;
    return s;
}

static const char *
dtype_name(attn_dtype dtype)
{
    static const char *const names[] = {"float16", "bfloat16", "float32", "float64"};
    return names[dtype];
}

/* ---- The same bits ------------------------------------------------------------------ */

static int n_started; /* threads, by count_threads */

static int (*start_thread)(void *(*start)(void *), void *argument);

static int
count_threads(void *(*start)(void *), void *argument)
{
    n_started++;
    return start_thread(start, argument);
}

void
test_every_tier_gives_the_same_bits(void)
{
    static uint64_t hashes[N_SPECS];
    static const int n_threads[] = {1, 3};
    const attn_tier *scalar = attn_tier_named("scalar");
    const attn_tier *tier;

    start_thread = attn_hook.create_thread;
    attn_hook.create_thread = count_threads;
    for (int t = -1; (tier = t < 0 ? scalar : attn_tier_at(t)) != NULL; t++) {
        for (int threads = 0; threads < 2; threads++) {
            uint64_t hash = HASH_START;
            for (int n = 0; n < N_SPECS; n++) {
                problem made;
                spec s = spec_at(n);
                make_problem(&s, &made);
                uint64_t one = run_problem(&made, tier, n_threads[threads]);
                free_problem(&made);
                hashes[n] = t < 0 && threads == 0 ? one : hashes[n];
                expect(one == hashes[n], "problem %d, \"%s\" of %s: other bits on %s",
                       n, s.name, dtype_name(s.dtype), tier->name);
                hash = hash_word(hash, one);
            }
            note("%-6s %d threads: %016llx", tier->name, n_threads[threads],
                 (unsigned long long)hash);
            expect(hash == GOLDEN, "the hash is not %016llx",
                   (unsigned long long)GOLDEN);
        }
        t += t < 0 ? 0 : 0;
    }
    attn_hook.create_thread = start_thread;
    expect(n_started > 0, "no problem was large enough for several threads");
}
