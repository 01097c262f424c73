/* Attention backwards, and dropout: the same bits from every tier and number of threads, also
 * where memory is short. What these bits mean is tested in Python. */
#include "core/backward.h"

#include "core/hooks.h"
#include "core/workspace.h"
#include "support/check.h"
#include "support/golden.h"
#include "support/pages.h"
#include "support/problem.h"

#include <limits.h>
#include <string.h>

/* Of the problems below, as golden.h explains; none is in bfloat16. */
#define GOLDEN UINT64_C(0xe158ff4f96bc45e5)
#define NATIVE_GOLDEN HASH_START
/* Of those in bfloat16. */
#define BF16_GOLDEN UINT64_C(0x37daf0102461261e)
#define BF16_NATIVE_GOLDEN UINT64_C(0xf517fb7b7d626fc3)
#define BF16_UNIT_GOLDEN UINT64_C(0xac7c160429c78473)

enum { N_DRAWN = 80, N_BF16 = 40, N_GRADIENTS = 5 };

/* ---- Problems ----------------------------------------------------------------------- */

static attn_dtype
dtype_at(int n)
{
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F64, ATTN_F32, ATTN_F16};
    return dtypes[n % 4];
}

static attn_dtype
bf16_at(int n)
{
    (void)n;
    return ATTN_BF16;
}

static spec
spec_of(int n, attn_dtype dtype)
{
    uint64_t state = (uint64_t)n + 7000;
    spec s = draw_spec(&state, dtype);

    s.name = "drawn, backwards";
    s.output = s.lse = DENSE;
    s.weights = n % 3 == 0 ? DENSE : ABSENT;
    s.dropout = n % 4 < 2 ? 0.25 : 0;
    s.special = n % 11 == 3   ? NAN_WHERE_HIDDEN
                : n % 11 == 7 ? NAN_WHERE_VISIBLE
                              : ORDINARY;
    return s;
}

static spec
spec_at(int n)
{
    return spec_of(n, dtype_at(n));
}

/* How a gradient lies: as its input where that is shared, in the ways that `shared` says. */
static layout
gradient_layout(layout input, layout shared)
{
    return input >= ONE_BATCH && input <= shared ? input : DENSE;
}

/* The gradients of a problem, in its own list of memory; those of bfloat16 are rounded where the
 * core does that. */
static void
make_backward(const spec *s, problem *made, attn_backward_problem *g)
{
    ptrdiff_t n_heads = s->n_kv_heads * s->group;

    memset(g, 0, sizeof *g);
    make_problem(s, made);
    attn_dtype real = made->p.arithmetic;
    bool rounds = s->dtype == ATTN_BF16 && attn_backward_rounds(&made->p, false);
    attn_dtype of_keys = rounds ? s->dtype : real;
    attn_dtype of_queries =
        rounds && attn_backward_rounds(&made->p, true) ? s->dtype : real;
    add_reals(made, &g->grad_output, s->query > SPREAD ? DENSE : s->query, s->dtype,
              n_heads, s->n_queries, s->value_dim, 20);
    if (s->mask != ABSENT) {
        add_reals(made, &g->grad_lse, DENSE, real, n_heads, s->n_queries, 1, 21);
    }
    add_reals(made, &g->grad_query, gradient_layout(s->query, ONE_BATCH), of_queries,
              n_heads, s->n_queries, s->head_dim, 22);
    add_reals(made, &g->grad_key, gradient_layout(s->key, ONE_BATCH), of_keys,
              s->n_kv_heads, s->n_keys, s->head_dim, 23);
    add_reals(made, &g->grad_value, gradient_layout(s->value, ONE_BATCH), of_keys,
              s->n_kv_heads, s->n_keys, s->value_dim, 24);
    if (s->bias != ABSENT) {
        add_reals(made, &g->grad_bias, gradient_layout(s->bias, ONE_ELEMENT), real,
                  n_heads, s->n_queries, s->n_keys, 25);
    }
    if (s->sinks) {
        add_reals(made, &g->grad_sinks, ONE_BATCH, real, n_heads, 1, 1, 26);
    }
    g->attention = made->p;
}

/* ---- Runs --------------------------------------------------------------------------- */

typedef struct {
    const attn_array *array;
    ptrdiff_t n_heads, n_rows, n_columns;
} gradient;

static void
list_gradients(const attn_backward_problem *g, gradient list[N_GRADIENTS])
{
    const attn_problem *p = &g->attention;
    ptrdiff_t n_heads = p->n_kv_heads * p->group;

    list[0] = (gradient){&g->grad_query, n_heads, p->n_queries, p->head_dim};
    list[1] = (gradient){&g->grad_key, p->n_kv_heads, p->n_keys, p->head_dim};
    list[2] = (gradient){&g->grad_value, p->n_kv_heads, p->n_keys, p->value_dim};
    list[3] = (gradient){&g->grad_bias, n_heads, p->n_queries, p->n_keys};
    list[4] = (gradient){&g->grad_sinks, n_heads, 1, 1};
}

/* Calls visit on each element of the gradients. */
static void
for_each_element(const attn_backward_problem *g,
                 void (*visit)(char *at, attn_dtype, void *), void *context)
{
    const attn_problem *p = &g->attention;
    gradient list[N_GRADIENTS];

    list_gradients(g, list);
    for (int k = 0; k < N_GRADIENTS; k++) {
        const gradient *one = &list[k];
        for (ptrdiff_t b = 0; b < p->batch.n && one->array->data != NULL; b++) {
            for (ptrdiff_t h = 0; h < one->n_heads; h++) {
                for (ptrdiff_t i = 0; i < one->n_rows; i++) {
                    for (ptrdiff_t d = 0; d < one->n_columns; d++) {
                        visit(element(p, one->array, b, h, i, d), one->array->dtype,
                              context);
                    }
                }
            }
        }
    }
}

static void
hash_element(char *at, attn_dtype dtype, void *hash)
{
    uint64_t word = 0;

    memcpy(&word, at, (size_t)attn_storage_of(dtype)->bytes);
    *(uint64_t *)hash = hash_word(*(uint64_t *)hash, word);
}

static void
clear_element(char *at, attn_dtype dtype, void *unused)
{
    (void)unused;
    memset(at, 0, (size_t)attn_storage_of(dtype)->bytes);
}

/* The hash of the gradients, 0 if memory ran out. */
static uint64_t
run_backward(const attn_backward_problem *g, const attn_tier *tier, int n_threads)
{
    attn_call call = {.tier = tier, .n_threads = n_threads};
    uint64_t hash = HASH_START;

    for_each_element(g, clear_element, NULL);
    if (attn_backward(g, &call) < 0) {
        return 0;
    }
    for_each_element(g, hash_element, &hash);
    return hash;
}

static uint64_t
run_spec_at(int n, const attn_tier *tier, int n_threads)
{
    attn_call call = {.tier = tier, .n_threads = n_threads};
    attn_backward_problem g;
    problem made;
    spec s = spec_at(n);

    make_backward(&s, &made, &g);
    reset_results(&made.p);
    int status = attn_attention(&g.attention, &call);
    uint64_t hash = status < 0 ? 0 : run_backward(&g, tier, n_threads);
    hash = hash_word(hash, hash_results(&made.p));
    free_problem(&made);
    return hash;
}

/* Of gradients in bfloat16 alone, after a forward call in float. */
static uint64_t
run_bf16_at(int n, const attn_tier *tier, int n_threads)
{
    attn_call call = {.tier = attn_portable_tier(tier), .n_threads = n_threads};
    attn_backward_problem g;
    problem made;
    spec s = spec_of(n, ATTN_BF16);

    make_backward(&s, &made, &g);
    reset_results(&made.p);
    uint64_t hash =
        attn_attention(&g.attention, &call) < 0 ? 0 : run_backward(&g, tier, n_threads);
    free_problem(&made);
    return hash;
}

static const char *
spec_name(int n)
{
    return spec_at(n).name;
}

void
test_every_tier_gives_gradients_the_same_bits(void)
{
    static const corpus c = {.n_problems = N_DRAWN,
                             .name = spec_name,
                             .dtype = dtype_at,
                             .run = run_spec_at,
                             .golden = GOLDEN,
                             .native_golden = NATIVE_GOLDEN};
    check_corpus(&c);
}

void
test_every_tier_gives_gradients_of_bfloat16_its_bits(void)
{
    static const corpus c = {.n_problems = N_BF16,
                             .name = spec_name,
                             .dtype = bf16_at,
                             .run = run_bf16_at,
                             .golden = BF16_GOLDEN,
                             .native_golden = BF16_NATIVE_GOLDEN,
                             .unit_golden = BF16_UNIT_GOLDEN};
    check_corpus(&c);
}

/* Keys and values in pages change no bit; their gradients lie in one piece. */
void
test_keys_in_pages_have_gradients_of_the_same_bits(void)
{
    double work = attn_set_work_per_thread(1);
    uint64_t state = 43;
    const attn_tier *tier;

    for (int n = 0; n < 40; n++) {
        attn_backward_problem g;
        problem made;
        spec s = spec_at(n);
        make_backward(&s, &made, &g);
        for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
            attn_call call = {.tier = tier, .n_threads = 1 + (n + t) % 3};
            paged to;
            expect(attn_attention(&g.attention, &call) == 0, "out of memory");
            uint64_t whole = run_backward(&g, tier, call.n_threads);
            put_in_pages(&g.attention, &state, &to);
            expect(run_backward(&g, tier, call.n_threads) == whole,
                   "%s: other bits in pages of problem %d, %td keys", tier->name, n,
                   s.n_keys);
            put_back(&g.attention, &to);
        }
        free_problem(&made);
    }
    attn_set_work_per_thread(work);
}

/* ---- Memory ------------------------------------------------------------------------- */

static attn_hooks original;
static int n_calls, first_failing, n_failed;

static void *
fail_from(size_t size)
{
    if (n_calls++ >= first_failing) {
        n_failed++;
        return NULL;
    }
    return original.allocate(size);
}

/* What there is no memory for is an error, or is done by fewer threads. */
void
test_failing_allocations_give_gradients_the_same_bits(void)
{
    original = attn_hook;
    attn_hook.allocate = fail_from;
    for (int n = 0; n < 40; n++) {
        attn_backward_problem g;
        problem made;
        spec s = spec_at(n);
        attn_call call = {.tier = attn_tier_at(0), .n_threads = 3};

        first_failing = INT_MAX;
        make_backward(&s, &made, &g);
        double work = attn_set_work_per_thread(1);
        expect(attn_attention(&g.attention, &call) == 0, "out of memory");
        uint64_t right = run_backward(&g, call.tier, 3);
        bool failed = true;
        for (int k = 0; failed; k++) {
            attn_workspace_free_all();
            n_calls = n_failed = 0;
            first_failing = k;
            uint64_t hash = run_backward(&g, call.tier, 3);
            failed = n_failed > 0;
            expect(hash == right || (hash == 0 && failed),
                   "problem %d: other bits where allocations from %d fail", n, k);
            expect(hash != 0 || k < 2, "problem %d: an error from %d on", n, k);
        }
        attn_set_work_per_thread(work);
        free_problem(&made);
    }
    attn_workspace_free_all();
    attn_hook = original;
}

/* Up to 2 MiB where D + Dv is at most 3,000 floats, for any number of rows and keys. */
void
test_workspaces_of_gradients_are_small(void)
{
    const attn_tier *tier;
    uint64_t state = 7;
    size_t largest = 0;

    for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
        for (int n = 0; n < 200; n++) {
            attn_backward_problem g = {.attention.n_queries = n, .attention.n_keys = n};
            char bias;
            bool is_double = n % 2 == 1;
            g.attention.bias.data = &bias;
            g.attention.head_dim = random_below(&state, is_double ? 750 : 1500);
            g.attention.value_dim = random_below(&state, is_double ? 750 : 1500);
            const attn_kernel *kernel = is_double ? tier->f64 : tier->f32;
            if (!is_double && tier->bf16 != NULL &&
                tier->bf16->backward.workspace_size != NULL) {
                kernel = tier->bf16;
            }
            size_t size = kernel->backward.workspace_size(&g);
            largest = size > largest ? size : largest;
        }
    }
    note("%zu bytes at most", largest);
    expect(largest <= 2 << 20, "%zu bytes", largest);
}
