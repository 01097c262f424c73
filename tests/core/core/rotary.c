/* Heads on their way from a projection to attention, or into a cache: the same bits from
 * every tier and number of threads, those of plain loops. */
#include "core/rotary.h"

#include "support/check.h"
#include "support/golden.h"
#include "support/plain.h"
#include "support/problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of the problems below, as golden.h explains; none has dot products. */
#define GOLDEN UINT64_C(0x03d67498619f3be8)
#define NATIVE_GOLDEN HASH_START
#define INT8_GOLDEN UINT64_C(0x1c002a1b26e96f2b)

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

/* ---- Problems ----------------------------------------------------------------------- */

typedef enum { NO_NORM, RMS_NORM, LAYER_NORM, N_NORMS } norm_kind;

typedef enum {
    UNIT,       /* in [-1, 1) */
    MANY,       /* of many magnitudes, some of them subnormal */
    LARGE,      /* some of them beyond float16, unless they come as that */
    BESIDE_TIES /* between two of float16, or of bfloat16, and next to there */
} numbers;

enum { MAX_BATCH = 6, NO_ROTATION = -1 };

typedef struct {
    const char *name;
    ptrdiff_t batch[2]; /* 0 means 1 */
    ptrdiff_t n_heads, n_tokens, head_dim;
    ptrdiff_t rotary_dim; /* NO_ROTATION: there are no angles */
    bool interleaved;
    bool mixed;
    norm_kind norm;
    bool together; /* the norm is of all heads of a token */
    numbers numbers;
    layout input, output, cos_sin;
    bool in_place;        /* where the result is of the input's dtype */
    ptrdiff_t cache_rows; /* of the output, where tokens follow others; or 0 */
} rotary_spec;

/* From which dtype to which: no narrower one, and what is stored is what the cache has or
 * all of the arithmetic's. */
typedef struct {
    attn_dtype input, dtype, cache, output;
} dtype_route;

static const dtype_route routes[] = {
    {ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F32},
    {ATTN_F64, ATTN_F64, ATTN_F64, ATTN_F64},
    {ATTN_F16, ATTN_F16, ATTN_F16, ATTN_F16},
    {ATTN_BF16, ATTN_BF16, ATTN_BF16, ATTN_BF16},
    {ATTN_F32, ATTN_F32, ATTN_F16, ATTN_F16},
    {ATTN_F32, ATTN_F32, ATTN_BF16, ATTN_F64},
    {ATTN_F64, ATTN_F64, ATTN_F16, ATTN_F16},
    {ATTN_F64, ATTN_F64, ATTN_F16, ATTN_F64},
    {ATTN_F64, ATTN_F64, ATTN_BF16, ATTN_BF16},
    {ATTN_F64, ATTN_F64, ATTN_F32, ATTN_F32},
    {ATTN_F16, ATTN_F16, ATTN_F32, ATTN_F32},
    {ATTN_BF16, ATTN_BF16, ATTN_F64, ATTN_F64},
    {ATTN_F16, ATTN_F32, ATTN_F16, ATTN_F16},
    {ATTN_BF16, ATTN_F64, ATTN_F32, ATTN_F64},
};

#define SMALL .n_heads = 2, .n_tokens = 5

/* Each step on its own and some together, on every route; sizes about those of vectors. */
static const rotary_spec listed[] = {
    {.name = "one number",
     .n_heads = 1,
     .n_tokens = 1,
     .head_dim = 1,
     .rotary_dim = NO_ROTATION},
    {.name = "stored only", SMALL, .head_dim = 33, .rotary_dim = NO_ROTATION},
    {.name = "halves", SMALL, .head_dim = 64, .rotary_dim = 64},
    {.name = "neighbours",
     SMALL,
     .head_dim = 64,
     .rotary_dim = 64,
     .interleaved = true},
    {.name = "halves of a part", SMALL, .head_dim = 40, .rotary_dim = 30},
    {.name = "neighbours of a part",
     SMALL,
     .head_dim = 41,
     .rotary_dim = 34,
     .interleaved = true},
    {.name = "no pairs", SMALL, .head_dim = 17, .rotary_dim = 0},
    {.name = "one pair", SMALL, .head_dim = 2, .rotary_dim = 2},
    {.name = "RMS norm",
     SMALL,
     .head_dim = 48,
     .rotary_dim = NO_ROTATION,
     .norm = RMS_NORM},
    {.name = "layer norm",
     SMALL,
     .head_dim = 17,
     .rotary_dim = NO_ROTATION,
     .norm = LAYER_NORM},
    {.name = "RMS norm, halves",
     SMALL,
     .head_dim = 66,
     .rotary_dim = 66,
     .norm = RMS_NORM},
    {.name = "layer norm, neighbours",
     SMALL,
     .head_dim = 31,
     .rotary_dim = 30,
     .interleaved = true,
     .norm = LAYER_NORM},
    {.name = "several tasks",
     .batch = {2, 3},
     .n_heads = 3,
     .n_tokens = 65,
     .head_dim = 18,
     .rotary_dim = 18,
     .norm = RMS_NORM,
     .cos_sin = ONE_BATCH},
    {.name = "cache",
     .batch = {3},
     .n_heads = 2,
     .n_tokens = 5,
     .head_dim = 32,
     .rotary_dim = NO_ROTATION,
     .cache_rows = 20},
    {.name = "cache, several tasks",
     .batch = {3},
     .n_heads = 2,
     .n_tokens = 50,
     .head_dim = 32,
     .rotary_dim = 32,
     .norm = RMS_NORM,
     .cos_sin = ONE_HEAD,
     .input = HEADS_INSIDE,
     .cache_rows = 70},
    {.name = "cache, neighbours, transposed",
     .batch = {2},
     .n_heads = 1,
     .n_tokens = 4,
     .head_dim = 34,
     .rotary_dim = 32,
     .interleaved = true,
     .output = TRANSPOSED,
     .cache_rows = 12},
    {.name = "in place", SMALL, .head_dim = 34, .rotary_dim = 34, .in_place = true},
    {.name = "in place, heads inside",
     SMALL,
     .batch = {2},
     .head_dim = 24,
     .rotary_dim = 8,
     .interleaved = true,
     .norm = RMS_NORM,
     .output = HEADS_INSIDE,
     .in_place = true},
    {.name = "heads inside, then transposed",
     SMALL,
     .batch = {2, 2},
     .head_dim = 16,
     .rotary_dim = 16,
     .input = HEADS_INSIDE,
     .output = TRANSPOSED,
     .cos_sin = ONE_HEAD},
    {.name = "spread, then reversed",
     SMALL,
     .batch = {2},
     .head_dim = 19,
     .rotary_dim = 6,
     .input = SPREAD,
     .output = REVERSED},
    {.name = "reversed, then spread",
     SMALL,
     .head_dim = 35,
     .rotary_dim = NO_ROTATION,
     .norm = LAYER_NORM,
     .input = REVERSED,
     .output = SPREAD},
    {.name = "one angle", SMALL, .head_dim = 10, .rotary_dim = 10, .cos_sin = ONE_ROW},
    {.name = "many magnitudes",
     SMALL,
     .head_dim = 130,
     .rotary_dim = 96,
     .numbers = MANY},
    {.name = "many magnitudes, RMS norm",
     SMALL,
     .head_dim = 65,
     .rotary_dim = NO_ROTATION,
     .norm = RMS_NORM,
     .numbers = MANY},
    {.name = "many magnitudes, stored only",
     SMALL,
     .head_dim = 130,
     .rotary_dim = NO_ROTATION,
     .numbers = MANY},
    {.name = "large", SMALL, .head_dim = 33, .rotary_dim = 32, .numbers = LARGE},
    {.name = "beside ties",
     SMALL,
     .head_dim = 130,
     .rotary_dim = NO_ROTATION,
     .numbers = BESIDE_TIES},
    {.name = "no tokens", .n_heads = 2, .head_dim = 4, .rotary_dim = 4},
    {.name = "no heads", .n_tokens = 3, .head_dim = 4, .rotary_dim = 4},
    {.name = "no columns", SMALL, .rotary_dim = 0},
    {.name = "mixed", SMALL, .head_dim = 64, .rotary_dim = 32, .mixed = true},
    {.name = "mixed in blocks of 8, in place",
     SMALL,
     .head_dim = 40,
     .rotary_dim = NO_ROTATION,
     .norm = RMS_NORM,
     .in_place = true,
     .mixed = true},
    {.name = "mixed, into a cache",
     SMALL,
     .batch = {2},
     .head_dim = 128,
     .rotary_dim = NO_ROTATION,
     .cache_rows = 9,
     .mixed = true},
    {.name = "mixed, an odd size",
     SMALL,
     .head_dim = 17,
     .rotary_dim = NO_ROTATION,
     .mixed = true},
    {.name = "RMS norm of all heads",
     .n_heads = 3,
     .n_tokens = 5,
     .head_dim = 11,
     .rotary_dim = NO_ROTATION,
     .norm = RMS_NORM,
     .together = true,
     .output = TRANSPOSED},
    {.name = "layer norm of all heads, neighbours, in place",
     SMALL,
     .batch = {2, 2},
     .head_dim = 34,
     .rotary_dim = 32,
     .interleaved = true,
     .norm = LAYER_NORM,
     .together = true,
     .output = HEADS_INSIDE,
     .in_place = true},
    {.name = "cache, RMS norm of all heads, several tasks",
     .batch = {3},
     .n_heads = 4,
     .n_tokens = 50,
     .head_dim = 16,
     .rotary_dim = 16,
     .norm = RMS_NORM,
     .together = true,
     .cos_sin = ONE_HEAD,
     .input = HEADS_INSIDE,
     .numbers = MANY,
     .mixed = true,
     .cache_rows = 70},
};

enum { N_DRAWN = 120, N_PROBLEMS = COUNT(listed) * COUNT(routes) + N_DRAWN };

static ptrdiff_t
draw_dim(uint64_t *state)
{
    static const ptrdiff_t dims[] = {1,  2,  3,  4,  7,  8,  9,  15, 16, 17,
                                     18, 31, 32, 33, 34, 63, 64, 65, 66, 129};
    return dims[random_below(state, COUNT(dims))];
}

static rotary_spec
draw_rotary(uint64_t *state)
{
    static const ptrdiff_t tokens[] = {1, 1, 2, 3, 5, 17, 63, 64, 65, 130};
    rotary_spec s = {.name = "drawn"};

    s.batch[0] = 1 + random_below(state, 3);
    s.n_heads = 1 + random_below(state, 3);
    s.n_tokens = tokens[random_below(state, COUNT(tokens))];
    s.head_dim = draw_dim(state);
    s.rotary_dim = random_below(state, s.head_dim / 2 + 1) * 2;
    s.rotary_dim = random_below(state, 4) == 0 ? NO_ROTATION : s.rotary_dim;
    s.interleaved = random_below(state, 2) == 0;
    s.norm = (norm_kind)random_below(state, N_NORMS);
    s.numbers = random_below(state, 2) == 0 ? UNIT : MANY;
    s.input = (layout)(1 + random_below(state, SPREAD));
    s.output = (layout)(1 + random_below(state, SPREAD));
    s.cos_sin = random_below(state, 2) == 0 ? ONE_HEAD : DENSE;
    s.in_place = random_below(state, 4) == 0;
    if (random_below(state, 2) == 0) {
        s.in_place = false;
        s.cache_rows = s.n_tokens + 3 * s.batch[0];
    } else {
        s.batch[1] = 1 + random_below(state, 2);
    }
    return s;
}

/* Problem n < N_PROBLEMS, and its dtypes. */
static rotary_spec
spec_at(int n, const dtype_route **route)
{
    int k = n - N_DRAWN;
    uint64_t state = 70 + (uint64_t)n;

    if (n >= N_DRAWN) {
        *route = &routes[k % COUNT(routes)];
        return listed[k / COUNT(routes)];
    }
    *route = &routes[random_below(&state, COUNT(routes))];
    return draw_rotary(&state);
}

/* ---- Their arrays ------------------------------------------------------------------- */

typedef struct {
    problem made; /* its output is the result */
    attn_rotary_problem p;
    attn_norm_problem norm;
    int64_t past_lengths[MAX_BATCH], lengths[MAX_BATCH];
} rotary_problem;

/* Number k of them. */
static double
number_at(numbers kind, const dtype_route *route, ptrdiff_t k, uint64_t *state)
{
    static const int exponents[] = {0, 3, -9, -15, -24, 14, -126, -140};
    static const double sides[] = {0, 0x1p-40, -0x1p-40};
    double x = random_unit(state), sign = x < 0 ? -1 : 1;
    int digits = route->cache == ATTN_BF16 ? 8 : 11;

    switch (kind) {
    case MANY: return ldexp(x, exponents[k % COUNT(exponents)]);
    case LARGE: return ldexp(x, route->input == ATTN_F16 ? 14 : 17);
    case BESIDE_TIES:
        x = 1 +
            (double)(2 * random_below(state, 1 << (digits - 1)) + 1) / (1 << digits);
        return ldexp(sign * (x + sides[k % 3]), (int)random_below(state, 20) - 16);
    default: return x;
    }
}

static void
set_numbers(rotary_problem *r, numbers kind, const dtype_route *route)
{
    const attn_rotary_problem *p = &r->p;
    uint64_t state = 3;

    for (ptrdiff_t b = 0; b < p->batch.n; b++) {
        for (ptrdiff_t h = 0; h < p->n_heads; h++) {
            for (ptrdiff_t t = 0; t < p->n_tokens; t++) {
                for (ptrdiff_t k = 0; k < p->head_dim; k++) {
                    write_number(element(&r->made.p, &p->input, b, h, t, k),
                                 p->input.dtype, number_at(kind, route, k, &state));
                }
            }
        }
    }
}

/* A norm's arrays are of the arithmetic's dtype, and one row. */
static void
add_norm(const rotary_spec *s, attn_dtype arithmetic, rotary_problem *r)
{
    attn_array weight = {0}, bias = {0};
    ptrdiff_t n = s->head_dim * (s->together ? s->n_heads : 1);

    add_reals(&r->made, &weight, ONE_BATCH, arithmetic, 1, 1, n, 4);
    if (s->norm == LAYER_NORM) {
        add_reals(&r->made, &bias, ONE_BATCH, arithmetic, 1, 1, n, 5);
    }
    r->norm = (attn_norm_problem){.n_rows = 1,
                                  .n_columns = n,
                                  .arithmetic = arithmetic,
                                  .centre = s->norm == LAYER_NORM,
                                  .eps = 1e-6,
                                  .weight = weight.data,
                                  .bias = bias.data};
    r->p.norm = &r->norm;
}

/* Sequences of several lengths; of every other one, the last two tokens are padding. */
static void
add_lengths(rotary_problem *r)
{
    for (ptrdiff_t b = 0; b < r->p.batch.n; b++) {
        ptrdiff_t n_padding = b % 2 == 0 ? 0 : 2;
        n_padding = n_padding < r->p.n_tokens ? n_padding : r->p.n_tokens;
        r->past_lengths[b] = 1 + 2 * b;
        r->lengths[b] = r->past_lengths[b] + r->p.n_tokens - n_padding;
    }
    r->p.past_lengths = r->past_lengths;
    r->p.lengths = r->lengths;
}

static attn_batch
batch_of(const rotary_spec *s)
{
    ptrdiff_t first = s->batch[0] > 0 ? s->batch[0] : 1;
    ptrdiff_t second = s->batch[1] > 0 ? s->batch[1] : 1;

    if (s->cache_rows > 0) {
        return (attn_batch){.n = first, .n_axes = 1, .shape = {first}};
    }
    return (attn_batch){.n = first * second, .n_axes = 2, .shape = {first, second}};
}

static void
make_rotary(int n, rotary_problem *r)
{
    const dtype_route *route;
    const rotary_spec s = spec_at(n, &route);
    const attn_dtype arithmetic = attn_storage_of(route->dtype)->arithmetic;
    ptrdiff_t n_rows = s.cache_rows > 0 ? s.cache_rows : s.n_tokens;

    r->p = (attn_rotary_problem){.batch = batch_of(&s),
                                 .n_heads = s.n_heads,
                                 .n_tokens = s.n_tokens,
                                 .head_dim = s.head_dim,
                                 .dtype = route->dtype,
                                 .cache_dtype = route->cache,
                                 .interleaved = s.interleaved,
                                 .mixed = s.mixed};
    make_result(&r->made, s.output, route->output, &r->p.batch, s.n_heads, n_rows,
                s.head_dim);
    r->p.output = r->p.input = r->made.p.output;
    if (!s.in_place || route->input != route->output) {
        add_reals(&r->made, &r->p.input, s.input, route->input, s.n_heads, s.n_tokens,
                  s.head_dim, 2);
    }
    set_numbers(r, s.numbers, route);
    if (s.norm != NO_NORM) {
        add_norm(&s, arithmetic, r);
    }
    if (s.rotary_dim != NO_ROTATION) {
        r->p.rotary_dim = s.rotary_dim;
        add_reals(&r->made, &r->p.cos_sin, s.cos_sin, arithmetic, s.n_heads, s.n_tokens,
                  s.rotary_dim, 6);
    }
    if (s.cache_rows > 0) {
        add_lengths(r);
    }
}

/* ---- The same bits ------------------------------------------------------------------ */

static const char *
name_of(int n)
{
    const dtype_route *route;
    return spec_at(n, &route).name;
}

/* Of the arithmetic: what is rounded to bfloat16 has the same bits on every tier, too. */
static attn_dtype
dtype_of(int n)
{
    const dtype_route *route;

    (void)spec_at(n, &route);
    return attn_storage_of(route->dtype)->arithmetic;
}

static uint64_t
run_at(int n, const attn_tier *tier, int n_threads)
{
    attn_call call = {.tier = tier, .n_threads = n_threads};
    rotary_problem r;

    make_rotary(n, &r);
    return end_result(&r.made, attn_rotary(&r.p, &call));
}

void
test_every_tier_gives_rotary_the_same_bits(void)
{
    static const corpus c = {.n_problems = N_PROBLEMS,
                             .name = name_of,
                             .dtype = dtype_of,
                             .run = run_at,
                             .golden = GOLDEN,
                             .native_golden = NATIVE_GOLDEN};
    check_corpus(&c);
}

/* ---- Heads as integers, and their scales ---------------------------------------------- */

static const ptrdiff_t int8_dims[] = {1, 2, 15, 17, 33, 64, 80, 96, 128, 600, 1100};
static const numbers int8_numbers[] = {UNIT, MANY, LARGE};

enum { N_INT8 = COUNT(int8_dims) * COUNT(int8_numbers) * 2 };

static attn_dtype
int8_dtype_of(int n)
{
    return n % 2 == 0 ? ATTN_F32 : ATTN_F64;
}

static const char *
int8_name_of(int n)
{
    (void)n;
    return "int8";
}

static uint64_t
run_int8_at(int n, const attn_tier *tier, int n_threads)
{
    const attn_dtype dtype = int8_dtype_of(n);
    const dtype_route route = {dtype, dtype, ATTN_I8, ATTN_I8};
    const ptrdiff_t dim = int8_dims[n / 2 % COUNT(int8_dims)];
    const attn_batch batch = {.n = 2, .n_axes = 1, .shape = {2}};
    enum { HEADS = 3, TOKENS = 70 };
    attn_call call = {.tier = tier, .n_threads = n_threads};
    rotary_problem r;

    r.p = (attn_rotary_problem){.batch = batch,
                                .n_heads = HEADS,
                                .n_tokens = TOKENS,
                                .head_dim = dim,
                                .dtype = dtype,
                                .cache_dtype = ATTN_I8,
                                .mixed = true};
    make_result(&r.made, DENSE, ATTN_I8, &batch, HEADS, TOKENS, dim);
    add_reals(&r.made, &r.made.p.lse, DENSE, ATTN_F32, HEADS, TOKENS, 1, 7);
    add_reals(&r.made, &r.p.input, DENSE, dtype, HEADS, TOKENS, dim, 2);
    r.p.output = r.made.p.output;
    r.p.scale = r.made.p.lse;
    set_numbers(&r, int8_numbers[n / 2 / COUNT(int8_dims)], &route);
    return end_result(&r.made, attn_rotary(&r.p, &call));
}

void
test_every_tier_makes_the_same_integers_of_heads(void)
{
    static const corpus c = {.n_problems = N_INT8,
                             .name = int8_name_of,
                             .dtype = int8_dtype_of,
                             .run = run_int8_at,
                             .golden = INT8_GOLDEN,
                             .native_golden = HASH_START};
    check_corpus(&c);
}

/* ---- Plain loops -------------------------------------------------------------------- */

/* The number of the result's elements that are not what plain loops gave for its row. */
static ptrdiff_t
count_wrong(const rotary_problem *r, ptrdiff_t b, ptrdiff_t h, ptrdiff_t row,
            const double *right)
{
    ptrdiff_t n_wrong = 0;

    for (ptrdiff_t k = 0; k < r->p.head_dim; k++) {
        double got = read_element(&r->made.p, &r->p.output, b, h, row, k);
        n_wrong += got != right[k] || (signbit(got) != 0) != (signbit(right[k]) != 0);
    }
    return n_wrong;
}

/* What plain loops make of all heads of all tokens, (B, H, tokens, D). */
static double *
plain_results(const attn_rotary_problem *p)
{
    size_t n = (size_t)(p->batch.n * p->n_heads * p->n_tokens * p->head_dim);
    double *results = calloc(n + 1, sizeof *results), *to = results;

    if (results == NULL) {
        abort();
    }
    for (ptrdiff_t b = 0; b < p->batch.n; b++) {
        for (ptrdiff_t h = 0; h < p->n_heads; h++) {
            for (ptrdiff_t t = 0; t < p->n_tokens; t++, to += p->head_dim) {
                plain_rotary(p, b, h, t, to);
            }
        }
    }
    return results;
}

/* Are all rows but those of tokens as reset_results left them? Writes that again to these. */
static bool
others_are_untouched(rotary_problem *r)
{
    uint64_t before;

    for (ptrdiff_t b = 0; b < r->p.batch.n; b++) {
        for (ptrdiff_t h = 0; h < r->p.n_heads; h++) {
            for (ptrdiff_t t = r->past_lengths[b]; t < r->lengths[b]; t++) {
                for (ptrdiff_t k = 0; k < r->p.head_dim; k++) {
                    memset(element(&r->made.p, &r->p.output, b, h, t, k), 0xa5,
                           (size_t)attn_storage_of(r->p.output.dtype)->bytes);
                }
            }
        }
    }
    before = hash_results(&r->made.p);
    reset_results(&r->made.p);
    return before == hash_results(&r->made.p);
}

/* Runs problem n on the best tier, and compares. */
static void
expect_plain(int n)
{
    attn_call call = {.tier = attn_tier_at(0), .n_threads = 1};
    rotary_problem r;
    ptrdiff_t n_wrong = 0;

    make_rotary(n, &r);
    double *results = plain_results(&r.p), *right = results;
    expect(attn_rotary(&r.p, &call) == 0, "out of memory");
    for (ptrdiff_t b = 0; b < r.p.batch.n; b++) {
        ptrdiff_t past = r.p.past_lengths == NULL ? 0 : r.past_lengths[b];
        ptrdiff_t n_kept = r.p.lengths == NULL ? r.p.n_tokens : r.lengths[b] - past;
        for (ptrdiff_t h = 0; h < r.p.n_heads; h++) {
            for (ptrdiff_t t = 0; t < r.p.n_tokens; t++, right += r.p.head_dim) {
                n_wrong += t < n_kept ? count_wrong(&r, b, h, past + t, right) : 0;
            }
        }
    }
    expect(n_wrong == 0, "problem %d, \"%s\": %td numbers are wrong", n, name_of(n),
           n_wrong);
    expect(r.p.lengths == NULL || others_are_untouched(&r),
           "problem %d, \"%s\": other rows are written", n, name_of(n));
    free(results);
    free_problem(&r.made);
}

void
test_rotary_results_are_those_of_plain_loops(void)
{
    for (int n = 0; n < N_PROBLEMS; n++) {
        expect_plain(n);
    }
}
