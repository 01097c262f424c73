/* Whole problems: the same bits from every tier and number of threads, the results of
 * plain loops, and no influence of what must have none. */
#include "core/attention.h"

#include "core/arrangement.h"
#include "core/paths.h"

#include "support/check.h"
#include "support/golden.h"
#include "support/plain.h"
#include "support/problem.h"
#include "support/tiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of the problems below, as golden.h explains. */
#define GOLDEN UINT64_C(0x0d760613ec058f2b)
#define NATIVE_GOLDEN UINT64_C(0xb3532c69def9c044)
#define UNIT_GOLDEN UINT64_C(0xbba6aa3bf9c225d5)
/* Of those whose keys or values are integers: no tier has other products for them. */
#define SCALED_GOLDEN UINT64_C(0x4955b2d63235d76d)

/* Of those whose keys and values are codes, likewise. */
#define CODED_GOLDEN UINT64_C(0x84d0e8b0eb493c80)

#define N_DRAWN 100

#define SMALL                                                                          \
    .n_kv_heads = 2, .group = 2, .n_queries = 20, .n_keys = 150, .head_dim = 24,       \
    .value_dim = 20
#define WIDE                                                                           \
    .n_kv_heads = 1, .group = 2, .n_queries = 70, .n_keys = 600, .head_dim = 33,       \
    .value_dim = 17
#define DECODE                                                                         \
    .n_kv_heads = 3, .group = 4, .n_queries = 1, .n_keys = 1300, .head_dim = 40,       \
    .value_dim = 36

/* Each option on its own and some together; float, double and one 16-bit dtype. */
static const spec listed[] = {
    {.name = "plain", SMALL},
    {.name = "plain, several tiles and chunks", WIDE, .weights = DENSE, .lse = DENSE},
    {.name = "plain, decoding", DECODE, .weights = DENSE, .lse = DENSE},
    {.name = "causal", WIDE, .causal = true},
    {.name = "causal, top left", WIDE, .causal = true, .top_left = true},
    {.name = "causal, more queries than keys",
     .n_kv_heads = 1,
     .group = 1,
     .n_queries = 150,
     .n_keys = 40,
     .head_dim = 8,
     .value_dim = 8,
     .causal = true,
     .weights = DENSE,
     .lse = DENSE},
    {.name = "window",
     WIDE,
     .has_window = true,
     .window_left = 40,
     .window_right = 3,
     .weights = DENSE},
    {.name = "window to the left",
     WIDE,
     .has_window = true,
     .window_left = 200,
     .window_right = -1,
     .causal = true},
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
    {.name = "bias of double",
     WIDE,
     .bias = SPREAD,
     .bias_dtype = ATTN_F64,
     .bias_hides = true,
     .weights = DENSE,
     .lse = DENSE},
    {.name = "bias of float16", SMALL, .bias = DENSE, .bias_dtype = ATTN_F16},
    {.name = "bias of bfloat16",
     DECODE,
     .bias = REVERSED,
     .bias_dtype = ATTN_BF16,
     .bias_hides = true,
     .weights = DENSE,
     .lse = DENSE},
    {.name = "bias of keys", SMALL, .bias = ONE_ROW, .bias_dtype = ATTN_F32},
    {.name = "bias of rows",
     SMALL,
     .bias = ONE_COLUMN,
     .bias_dtype = ATTN_F64,
     .bias_hides = true},
    {.name = "softcap", WIDE, .softcap = 0.5, .weights = DENSE},
    {.name = "softcap, decoding", DECODE, .softcap = 2, .scale = 3},
    {.name = "sinks", WIDE, .sinks = true, .weights = DENSE, .lse = DENSE},
    {.name = "sinks, rows that see nothing",
     DECODE,
     .sinks = true,
     .lengths = true,
     .batch = {3},
     .mask = DENSE,
     .lse = DENSE,
     .weights = DENSE},
    {.name = "scale that is 0 in float", SMALL, .scale = 1e-300, .lse = DENSE},
    {.name = "negative scale", SMALL, .scale = -0.7},
    {.name = "huge logits", WIDE, .scale = 1e18, .weights = DENSE},
    {.name = "NaN in hidden keys",
     WIDE,
     .lengths = true,
     .batch = {2},
     .mask = ONE_ROW,
     .special = NAN_WHERE_HIDDEN,
     .weights = DENSE,
     .lse = DENSE},
    {.name = "NaN in hidden keys, decoding",
     DECODE,
     .mask = ONE_HEAD,
     .special = NAN_WHERE_HIDDEN,
     .weights = DENSE,
     .lse = DENSE},
    {.name = "NaN in some keys",
     WIDE,
     .causal = true,
     .mask = DENSE,
     .special = NAN_WHERE_VISIBLE,
     .weights = DENSE,
     .lse = DENSE},
    {.name = "NaN in some keys, decoding",
     DECODE,
     .mask = DENSE,
     .special = NAN_WHERE_VISIBLE,
     .weights = DENSE,
     .lse = DENSE},
    {.name = "infinite queries",
     SMALL,
     .causal = true,
     .special = INFINITE_QUERIES,
     .weights = DENSE,
     .lse = DENSE},
    {.name = "infinite queries, sinks",
     DECODE,
     .special = INFINITE_QUERIES,
     .sinks = true,
     .weights = DENSE,
     .lse = DENSE},
    {.name = "transposed",
     WIDE,
     .query = TRANSPOSED,
     .key = TRANSPOSED,
     .value = TRANSPOSED,
     .output = TRANSPOSED,
     .weights = TRANSPOSED,
     .lse = HEADS_INSIDE},
    {.name = "reversed",
     WIDE,
     .query = REVERSED,
     .key = REVERSED,
     .value = REVERSED,
     .output = REVERSED,
     .weights = REVERSED,
     .lse = REVERSED},
    {.name = "spread, decoding",
     DECODE,
     .query = SPREAD,
     .key = SPREAD,
     .value = SPREAD,
     .output = SPREAD,
     .weights = SPREAD,
     .lse = SPREAD},
    {.name = "heads inside",
     WIDE,
     .batch = {2},
     .query = HEADS_INSIDE,
     .key = HEADS_INSIDE,
     .value = HEADS_INSIDE,
     .output = HEADS_INSIDE},
    {.name = "broadcast",
     SMALL,
     .batch = {2, 3},
     .query = ONE_BATCH,
     .key = ONE_ROW,
     .value = ONE_ELEMENT},
    {.name = "one column", SMALL, .query = ONE_COLUMN, .key = ONE_COLUMN},
    {.name = "long rows",
     .n_kv_heads = 1,
     .group = 2,
     .n_queries = 20,
     .n_keys = 150,
     .head_dim = 2 * ATTN_DIM_BLOCK + 1,
     .value_dim = ATTN_DIM_BLOCK + 3,
     .key = SPREAD,
     .weights = DENSE},
    {.name = "long rows, decoding",
     .n_kv_heads = 2,
     .group = 3,
     .n_queries = 1,
     .n_keys = 600,
     .head_dim = 2 * ATTN_DIM_BLOCK + 1,
     .value_dim = 2 * ATTN_DIM_BLOCK + 1,
     .weights = DENSE},
    {.name = "no head dimension",
     .n_kv_heads = 1,
     .group = 2,
     .n_queries = 9,
     .n_keys = 20,
     .value_dim = 5,
     .lse = DENSE},
    {.name = "no value dimension",
     .n_kv_heads = 1,
     .group = 2,
     .n_queries = 9,
     .n_keys = 20,
     .head_dim = 5,
     .lse = DENSE,
     .weights = DENSE},
    {.name = "no keys",
     .n_kv_heads = 1,
     .group = 2,
     .n_queries = 9,
     .head_dim = 5,
     .value_dim = 5,
     .lse = DENSE},
    {.name = "no queries",
     .n_kv_heads = 1,
     .group = 2,
     .n_keys = 9,
     .head_dim = 5,
     .value_dim = 5,
     .lse = DENSE},
    {.name = "one of each",
     .n_kv_heads = 1,
     .group = 1,
     .n_queries = 1,
     .n_keys = 1,
     .head_dim = 1,
     .value_dim = 1,
     .lse = DENSE,
     .weights = DENSE},
};

enum { N_SCALED = 90, N_CODED = 60 };

enum { N_LISTED = sizeof listed / sizeof listed[0], N_SPECS = 3 * N_LISTED + N_DRAWN };

/* Of the n-th problem: half of them float, a quarter double. */
static attn_dtype
dtype_at(int n)
{
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F64, ATTN_F32, ATTN_F16,
                                        ATTN_F32, ATTN_F64, ATTN_F32, ATTN_BF16};
    return dtypes[n % 8];
}

/* The corpus' problem n < N_SPECS. */
static spec
spec_at(int n)
{
    int k = n - N_DRAWN;
    uint64_t state = (uint64_t)n;

    if (n < N_DRAWN) {
        return draw_spec(&state, dtype_at(n));
    }
    spec s = listed[k / 3];
    s.dtype = k % 3 == 0   ? ATTN_F32
              : k % 3 == 1 ? ATTN_F64
              : k % 2 == 0 ? ATTN_F16
                           : ATTN_BF16;
    return s;
}

/* Problem n < N_SCALED of those with scales: drawn, some with few rows and some with heads that are
 * read in whole vectors. */
static spec
scaled_at(int n)
{
    static const ptrdiff_t dims[] = {16, 32, 64, 80, 96, 128, 144};
    uint64_t state = (uint64_t)n + 1000;
    spec s = draw_spec(&state, dtype_at(n));

    s.name = "scaled";
    s.key_scales = n % 3 != 1;
    s.value_scales = n % 3 != 0;
    s.special = (special)(n / 3 % (INFINITE_QUERIES + 1));
    s.dropout = n % 7 == 0 ? 0.25 : 0;
    s.head_dim += s.head_dim == 0;
    if (n % 2 == 1) {
        s.n_queries = 1 + random_below(&state, 3);
        s.head_dim = dims[random_below(&state, 7)];
        s.value_dim = dims[random_below(&state, 7)];
        s.key = s.value = DENSE;
    }
    return s;
}

/* Problem n < N_CODED of those with codes, some with few rows. */
static spec
coded_at(int n)
{
    static const ptrdiff_t dims[] = {32, 64, 33, 96, 600};
    uint64_t state = (uint64_t)n + 2000;
    spec s = draw_spec(&state, ATTN_F32);

    s.name = "coded";
    s.codes = true;
    s.special = (special)(n / 3 % (INFINITE_QUERIES + 1));
    s.dropout = 0;
    s.head_dim += s.head_dim == 0;
    if (n % 3 == 1) {
        s.head_dim = dims[random_below(&state, 5)];
        s.value_dim = dims[random_below(&state, 5)];
    }
    return s;
}

/* ---- The same bits ------------------------------------------------------------------ */

static uint64_t
run_spec(const spec *s, const attn_tier *tier, int n_threads)
{
    problem made;

    make_problem(s, &made);
    attn_choose_task_rows(&made.p, n_threads);
    uint64_t hash = run_problem(&made, tier, n_threads);
    free_problem(&made);
    return hash;
}

static const char *
spec_name(int n)
{
    return spec_at(n).name;
}

static attn_dtype
spec_dtype(int n)
{
    return spec_at(n).dtype;
}

static uint64_t
run_spec_at(int n, const attn_tier *tier, int n_threads)
{
    spec s = spec_at(n);
    return run_spec(&s, tier, n_threads);
}

void
test_every_tier_gives_the_same_bits(void)
{
    static const corpus c = {.n_problems = N_SPECS,
                             .name = spec_name,
                             .dtype = spec_dtype,
                             .run = run_spec_at,
                             .golden = GOLDEN,
                             .native_golden = NATIVE_GOLDEN,
                             .unit_golden = UNIT_GOLDEN};
    check_corpus(&c);
}

static const char *
scaled_name(int n)
{
    return scaled_at(n).name;
}

static attn_dtype
scaled_dtype(int n)
{
    attn_dtype dtype = scaled_at(n).dtype;
    return dtype == ATTN_BF16 ? ATTN_F32 : dtype; /* not every operand is bfloat16 */
}

static uint64_t
run_scaled(int n, const attn_tier *tier, int n_threads)
{
    spec s = scaled_at(n);
    return run_spec(&s, tier, n_threads);
}

void
test_every_tier_gives_the_same_bits_with_scales(void)
{
    static const corpus c = {.n_problems = N_SCALED,
                             .name = scaled_name,
                             .dtype = scaled_dtype,
                             .integers = true,
                             .run = run_scaled,
                             .golden = SCALED_GOLDEN,
                             .native_golden = HASH_START};
    check_corpus(&c);
}

/* The source of the kernel for AMX runs with tiles in plain C. */
void
test_tiles_give_attention_over_bytes_the_same_bits(void)
{
    attn_tier room;
    const attn_tier *tier = tier_with_tiles(&room);

    for (int n = 0; tier != NULL && n < N_SCALED; n++) {
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            uint64_t hash = run_scaled(n, attn_tier_named("scalar"), n_threads);
            expect(run_scaled(n, tier, n_threads) == hash, "%d, %d threads: other bits",
                   n, n_threads);
        }
    }
}

static const char *
coded_name(int n)
{
    return coded_at(n).name;
}

static attn_dtype
coded_dtype(int n)
{
    return coded_at(n).dtype;
}

static uint64_t
run_coded(int n, const attn_tier *tier, int n_threads)
{
    spec s = coded_at(n);
    return run_spec(&s, tier, n_threads);
}

void
test_every_tier_gives_the_same_bits_with_codes(void)
{
    static const corpus c = {.n_problems = N_CODED,
                             .name = coded_name,
                             .dtype = coded_dtype,
                             .integers = true,
                             .run = run_coded,
                             .golden = CODED_GOLDEN,
                             .native_golden = HASH_START};
    check_corpus(&c);
}

/* ---- Plain loops -------------------------------------------------------------------- */

/* Units of rounding of what is compared, times some for the arithmetic before it. */
static double
tolerance(attn_dtype dtype)
{
    switch (dtype) {
    case ATTN_F16: return 0x1p-11 * 1.1;
    case ATTN_BF16: return 0x1p-8 * 1.1;
    case ATTN_F32: return 1e-6;
    case ATTN_I8: /* of no result */
    case ATTN_I16:
    case ATTN_F64: break;
    }
    return 4e-15;
}

/* What queries and weights add that are rounded to codes: core/bytes.h. */
static double
tolerance_of_codes(const attn_problem *p)
{
    bool has_codes = p->arithmetic == ATTN_F32 &&
                     (p->key_scale.data != NULL || p->value_scale.data != NULL);

    return p->key.dtype == ATTN_I16 ? 1e-3 : has_codes ? 3e-5 : 0;
}

static double
difference(double got, double want)
{
    if (isnan(want) || isinf(want)) {
        bool same = isnan(want) ? isnan(got) : got == want;
        return same ? 0 : HUGE_VAL;
    }
    return isnan(got) ? HUGE_VAL : fabs(got - want) / (1 + fabs(want));
}

/* The largest difference in one row of output, weights and LSE, as multiples of what is
 * tolerated. */
static double
row_difference(const attn_problem *p, ptrdiff_t b, ptrdiff_t h, ptrdiff_t i,
               double *output, double *weights)
{
    double worst = 0, lse;

    plain_row(p, b, h, i, output, weights, &lse);
    for (ptrdiff_t d = 0; d < p->value_dim; d++) {
        double got = read_element(p, &p->output, b, h, i, d);
        worst = fmax(worst, difference(got, output[d]));
    }
    for (ptrdiff_t j = 0; j < p->n_keys && p->weights != NULL; j++) {
        double got = read_element(p, &p->weights->array, b, h, i, j);
        worst = fmax(worst, difference(got, weights[j]));
    }
    worst /= tolerance(p->output.dtype) + tolerance_of_codes(p);
    if (p->lse.data != NULL) {
        double got = read_element(p, &p->lse, b, h, i, 0);
        worst = fmax(worst, difference(got, lse) /
                                (tolerance(p->arithmetic) + tolerance_of_codes(p)));
    }
    return worst;
}

static double
problem_difference(const attn_problem *p)
{
    double *output = calloc((size_t)p->value_dim + 1, sizeof *output);
    double *weights = calloc((size_t)p->n_keys + 1, sizeof *weights);
    double worst = 0;

    if (output == NULL || weights == NULL) {
        abort();
    }
    for (ptrdiff_t b = 0; b < p->batch.n; b++) {
        for (ptrdiff_t h = 0; h < p->n_kv_heads * p->group; h++) {
            for (ptrdiff_t i = 0; i < p->n_queries; i++) {
                worst = fmax(worst, row_difference(p, b, h, i, output, weights));
            }
        }
    }
    free(output);
    free(weights);
    return worst;
}

void
test_results_are_those_of_plain_loops(void)
{
    double worst[N_FLOATING] = {0}; /* by dtype */

    for (int n = 0; n < N_SPECS + N_SCALED + N_CODED; n++) {
        problem made;
        spec s = n < N_SPECS              ? spec_at(n)
                 : n < N_SPECS + N_SCALED ? scaled_at(n - N_SPECS)
                                          : coded_at(n - N_SPECS - N_SCALED);
        if (s.codes && s.special == INFINITE_QUERIES) {
            s.special = ORDINARY; /* all of such a row is NaN */
        }
        s.dropout = 0; /* which plain loops do not know */
        make_problem(&s, &made);
        expect(run_problem(&made, attn_tier_at(0), 1) != 0, "out of memory");
        double d = problem_difference(&made.p);
        free_problem(&made);
        expect(d <= 1, "problem %d, \"%s\" of %s: off by %.3g times what is tolerated",
               n, s.name, dtype_name(s.dtype), d);
        worst[s.dtype] = fmax(worst[s.dtype], d);
    }
    for (int n = 0; n < N_FLOATING; n++) {
        note("%s: off by %.2f times what is tolerated", dtype_name((attn_dtype)n),
             worst[n]);
    }
}

/* ---- What must have no influence ---------------------------------------------------- */

void
test_strides_change_no_bit(void)
{
    uint64_t state = 21;

    for (int n = 0; n < 60; n++) {
        spec s = draw_spec(&state, dtype_at(n));
        layout how = (layout)(HEADS_INSIDE + n % (SPREAD - HEADS_INSIDE + 1));
        s.mask = s.mask > SPREAD ? DENSE : s.mask;
        s.bias = s.bias > SPREAD ? DENSE : s.bias;
        s.query = s.key = s.value = s.output = DENSE;
        uint64_t dense = run_spec(&s, attn_tier_at(0), 1);
        s.query = s.key = s.value = s.output = how;
        s.mask = s.mask == ABSENT ? ABSENT : how;
        s.bias = s.bias == ABSENT ? ABSENT : how;
        s.weights = s.weights == ABSENT ? ABSENT : how;
        s.lse = s.lse == ABSENT ? ABSENT : how;
        expect(run_spec(&s, attn_tier_at(0), 1) == dense,
               "problem %d: other bits with layout %d", n, how);
    }
}

void
test_hidden_keys_change_no_bit(void)
{
    uint64_t state = 22;

    for (int n = 0; n < 60; n++) {
        spec s = draw_spec(&state, dtype_at(n));
        s.key = s.key > SPREAD ? DENSE : s.key;
        s.value = s.value > SPREAD ? DENSE : s.value;
        s.lengths = true;
        s.key_scales = n % 3 == 1;
        s.value_scales = n % 3 > 0;
        s.codes = s.dtype == ATTN_F32 && n % 4 == 0;
        s.dropout = s.codes ? 0 : s.dropout;
        s.special = ORDINARY;
        uint64_t ordinary = run_spec(&s, attn_tier_at(0), 1);
        s.special = NAN_WHERE_HIDDEN;
        expect(run_spec(&s, attn_tier_at(0), 1) == ordinary,
               "problem %d: NaN in hidden keys came through", n);
    }
}

/* Everything the problem's arrays lie in, one after the other; *size bytes. */
static char *
copy_memory(const problem *made, size_t *size)
{
    char *copy = NULL;

    *size = 0;
    for (int k = 0; k < made->n_memory; k++) {
        copy = realloc(copy, *size + made->sizes[k] + 1);
        if (copy == NULL) {
            abort();
        }
        memcpy(copy + *size, made->memory[k], made->sizes[k]);
        *size += made->sizes[k];
    }
    return copy;
}

void
test_nothing_but_results_is_written(void)
{
    uint64_t state = 23;

    for (int n = 0; n < 60; n++) {
        problem made;
        size_t size;
        spec s = draw_spec(&state, dtype_at(n));
        s.output = SPREAD;
        s.weights = s.lse = n % 2 == 0 ? SPREAD : HEADS_INSIDE;
        make_problem(&s, &made);
        reset_results(&made.p);
        char *before = copy_memory(&made, &size);
        expect(run_problem(&made, attn_tier_at(0), 1) != 0, "out of memory");
        reset_results(&made.p);
        char *after = copy_memory(&made, &size);
        expect(memcmp(before, after, size) == 0, "problem %d: inputs or gaps changed",
               n);
        free(before);
        free(after);
        free_problem(&made);
    }
}

/* ---- Rows alone --------------------------------------------------------------------- */

/* Narrows a problem to query i, at its former position. */
static void
narrow_to_row(problem *made, ptrdiff_t i, int64_t position[4])
{
    attn_problem *p = &made->p;
    attn_array *arrays[] = {
        &p->query, &p->mask, &p->bias, &p->output, &made->weights.array, &p->lse};

    for (ptrdiff_t b = 0; b < p->batch.n; b++) {
        position[b] = position_of(p, b, i);
    }
    for (size_t k = 0; k < sizeof arrays / sizeof arrays[0]; k++) {
        if (arrays[k]->data != NULL) {
            arrays[k]->data += i * arrays[k]->row_stride;
        }
        arrays[k]->row_stride = 0;
    }
    p->q_offset = (attn_array){.data = (char *)position};
    p->q_offset.batch_stride[1] = sizeof position[0];
    p->q_offset.batch_stride[0] = p->batch.shape[1] * p->q_offset.batch_stride[1];
    p->n_queries = 1;
}

void
test_rows_alone_have_the_bits_they_have_together(void)
{
    uint64_t state = 24;

    for (int n = 0; n < 60; n++) {
        problem made;
        spec s = draw_spec(&state, dtype_at(n));
        s.n_queries += 10; /* no row form */
        s.key_scales = s.value_scales = n % 2 == 1;
        s.codes = s.dtype == ATTN_F32 && n % 4 == 0;
        s.dropout = s.codes ? 0 : s.dropout;
        make_problem(&s, &made);
        run_problem(&made, attn_tier_at(0), 1);
        for (int k = 0; k < 3; k++) {
            problem row;
            int64_t position[4];
            share_problem(&made, &row);
            narrow_to_row(&row, random_below(&state, s.n_queries), position);
            uint64_t together = hash_results(&row.p);
            expect(run_problem(&row, attn_tier_at(0), 1) == together,
                   "problem %d: other bits for a row alone", n);
        }
        free_problem(&made);
    }
}

void
test_rows_of_tasks_change_no_bit(void)
{
    const attn_tier *tier;
    uint64_t state = 26;

    for (int n = 0; n < 4; n++) {
        problem made;
        spec s = draw_spec(&state, (attn_dtype)n);
        s.n_queries += 30;
        make_problem(&s, &made);
        for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
            made.p.task_rows = ATTN_TASK_ROWS;
            uint64_t whole = run_problem(&made, tier, 1);
            for (ptrdiff_t rows = ATTN_TILE_ROWS; rows > 0; rows /= 2) {
                made.p.task_rows = rows;
                expect(run_problem(&made, tier, 3) == whole,
                       "problem %d, %s: other bits for tasks of %td rows", n,
                       tier->name, rows);
            }
        }
        free_problem(&made);
    }
}

/* Runs four tasks of a head of 256 keys on one thread; the dtype is that of the arrays. */
static void
run_four_tasks(const attn_tier *tier, attn_dtype dtype)
{
    const spec s = {.name = "four tasks",
                    .dtype = dtype,
                    .n_kv_heads = 1,
                    .group = 1,
                    .n_queries = 4 * ATTN_TASK_ROWS,
                    .n_keys = 2 * ATTN_BLOCK,
                    .head_dim = 64,
                    .value_dim = 64};
    problem made;

    make_problem(&s, &made);
    run_problem(&made, tier, 1);
    free_problem(&made);
}

/* Bits would be the same without it. */
void
test_avx2_multiplies_steps_in_groups(void)
{
    const attn_tier *tier = attn_tier_named("avx2");

    for (int n = 0; tier != NULL && n < N_FLOATING; n++) {
        attn_take_count(ATTN_PATH_PANEL_GROUPS);
        run_four_tasks(tier, (attn_dtype)n);
        long count = attn_take_count(ATTN_PATH_PANEL_GROUPS);
        /* More than the values' products have: so the scores' have some, too. */
        expect(count > 2 * 4 * 64 / 4 * 4, "%s: %ld panels", dtype_name((attn_dtype)n),
               count);
    }
}

/* Three of four tasks find what the first one converted: two blocks, of keys and of values. */
void
test_avx2_converts_keys_once_for_a_head(void)
{
    const attn_tier *tier = attn_tier_named("avx2");

    for (int n = 0; tier != NULL && n < N_FLOATING; n++) {
        attn_dtype dtype = (attn_dtype)n;
        attn_take_count(ATTN_PATH_KEPT_ROWS);
        run_four_tasks(tier, dtype);
        long count = attn_take_count(ATTN_PATH_KEPT_ROWS);
        expect(count == (attn_is_half(dtype) ? 3 * 2 * 2 : 0), "%s: %ld blocks",
               dtype_name(dtype), count);
    }
}

/* In row form each square of keys is read once, whatever the number of heads that share them. */
void
test_avx2_transposes_bfloat16_in_pairs(void)
{
    const attn_tier *tier = attn_tier_named("avx2");

    for (int i = 0; tier != NULL && i < N_FLOATING * 4; i++) {
        attn_dtype dtype = (attn_dtype)(i / 4);
        const spec s = {.name = "decoding",
                        .dtype = dtype,
                        .n_kv_heads = 2,
                        .group = 1 << i % 4,
                        .n_queries = 1,
                        .n_keys = 2 * ATTN_BLOCK + 24,
                        .head_dim = 80,
                        .value_dim = 64};
        ptrdiff_t squares = dtype == ATTN_BF16 ? s.n_kv_heads * s.n_keys * 80 / 64 : 0;
        problem made;
        make_problem(&s, &made);
        attn_take_count(ATTN_PATH_BF16_COLUMNS);
        run_problem(&made, tier, 1);
        long count = attn_take_count(ATTN_PATH_BF16_COLUMNS);
        free_problem(&made);
        expect(count == squares, "%s, %td heads: %ld squares", dtype_name(dtype),
               s.group, count);
    }
}

/* Shapes, threads, and the rows of a task that these are to have. */
static const struct {
    ptrdiff_t n_heads, group, n_queries, n_keys, dim;
    int n_threads;
    ptrdiff_t rows;
} task_rows[] = {
    {2, 1, 8192, 8192, 64, 64, 64}, /* 256 tasks of 64 rows are enough */
    {8, 1, 2048, 2048, 128, 64, 64},
    {1, 1, 16384, 16384, 64, 64, 64},
    {1, 1, 8192, 8192, 64, 64, 32},
    {12, 1, 512, 512, 64, 64, 32},
    {2, 6, 512, 512, 64, 64, 32},
    {2, 1, 1024, 1024, 64, 64, 32}, /* too few: keys are shared */
    {2, 1, 1024, 512, 64, 64, 32},
    {1, 1, 1024, 512, 64, 64, 16},
    {1, 1, 1024, 1024, 64, 1, 64}, /* few threads */
    {1, 1, 128, 512, 64, 1, 64},
    {8, 1, 64, 64, 64, 2, 64},
    {1, 1, 128, 512, 64, 2, 64},
    {1, 1, 64, 512, 64, 2, 32},
    {1, 1, 256, 512, 64, 3, 32},
    {12, 1, 8, 4096, 64, 64, 64}, /* row form */
    {1, 1, 300, 8, 8, 64, 64},    /* too little work for a second thread */
    {4, 1, 128, 128, 3000, 1, 32},
};

enum { N_TASK_ROWS = sizeof task_rows / sizeof task_rows[0] };

void
test_rows_of_tasks_suit_the_threads(void)
{
    for (int n = 0; n < N_TASK_ROWS; n++) {
        attn_problem p = {.batch = {.n = 1, .n_axes = 1, .shape = {1}},
                          .n_kv_heads = task_rows[n].n_heads,
                          .group = task_rows[n].group,
                          .n_queries = task_rows[n].n_queries,
                          .n_keys = task_rows[n].n_keys,
                          .head_dim = task_rows[n].dim,
                          .value_dim = task_rows[n].dim,
                          .arithmetic = ATTN_F32};
        attn_choose_task_rows(&p, task_rows[n].n_threads);
        expect(p.task_rows == task_rows[n].rows, "shape %d: tasks of %td rows, not %td",
               n, p.task_rows, task_rows[n].rows);
        ptrdiff_t rows = p.group * p.n_queries;
        expect(attn_attention_tasks(&p) ==
                   p.n_kv_heads * ((rows + p.task_rows - 1) / p.task_rows),
               "shape %d: %td tasks", n, attn_attention_tasks(&p));
    }
}

/* Narrows a problem to the g-th head of each group. */
static void
narrow_to_head(problem *made, ptrdiff_t g)
{
    attn_problem *p = &made->p;
    attn_array *arrays[] = {&p->query,           &p->mask, &p->bias,
                            &p->sinks,           &p->lse,  &p->output,
                            &made->weights.array};

    for (size_t k = 0; k < sizeof arrays / sizeof arrays[0]; k++) {
        if (arrays[k]->data != NULL) {
            arrays[k]->data += g * arrays[k]->head_stride;
        }
        arrays[k]->head_stride *= p->group;
    }
    p->group = 1;
}

/* Expects the bits that each row of each group's rows has together from the row alone. */
static void
expect_rows_alone(const problem *made, const attn_tier *tier, const spec *s)
{
    const ptrdiff_t n_rows = s->group * s->n_queries;

    for (ptrdiff_t r = 0; r < n_rows; r++) {
        problem row;
        int64_t position[4];
        share_problem(made, &row);
        narrow_to_head(&row, r / s->n_queries);
        narrow_to_row(&row, r % s->n_queries, position);
        run_problem(made, tier, 1);
        uint64_t together = hash_results(&row.p);
        expect(run_problem(&row, tier, 1) == together,
               "%s, %s, %td heads of %td queries, special %d: other bits for row %td",
               tier->name, dtype_name(s->dtype), s->group, s->n_queries, s->special, r);
    }
}

/* Up to one row more than those of row form, as heads, as queries and as both. */
void
test_few_rows_have_the_bits_they_have_alone(void)
{
    enum { MAX_ROWS = 9, N_SPECIALS = INFINITE_QUERIES + 1 };
    const attn_tier *tier;
    uint64_t state = 25;

    for (int n = 0; n < 4 * N_SPECIALS * MAX_ROWS * MAX_ROWS; n++) {
        ptrdiff_t n_rows = 1 + n / MAX_ROWS % MAX_ROWS, group = 1 + n % MAX_ROWS;
        spec s = draw_spec(&state, (attn_dtype)(n / MAX_ROWS / MAX_ROWS % 4));
        problem made;
        if (n_rows % group != 0) {
            continue;
        }
        s.special = (special)(n / MAX_ROWS / MAX_ROWS / 4);
        s.mask = s.special != ORDINARY && s.mask == ABSENT ? DENSE : s.mask;
        s.head_dim += s.head_dim == 0;
        s.group = group;
        s.key_scales = n % 4 == 1;
        s.value_scales = n % 4 > 1;
        s.n_queries = n_rows / group;
        s.batch[0] = 1;
        make_problem(&s, &made);
        for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
            expect_rows_alone(&made, tier, &s);
        }
        free_problem(&made);
    }
}
