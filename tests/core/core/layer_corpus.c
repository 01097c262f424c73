/* What layers are made of besides attention: the same bits of linear products, norms and
 * activations from every tier and number of threads. */
#include "core/activate.h"
#include "core/linear.h"
#include "core/norm.h"
#include "core/paths.h"
#include "core/tuning.h"
#include "support/check.h"
#include "support/golden.h"
#include "support/problem.h"

#include <math.h>
#include <string.h>

/* Of the problems below, as golden.h explains. */
#define GOLDEN UINT64_C(0x25fd15fcc03a3273)
#define NATIVE_GOLDEN UINT64_C(0x2f0a2dbd0aa2e706)
#define UNIT_GOLDEN UINT64_C(0x191d782c9f122591)
/* Of those with the activations that came later. */
#define LATER_GOLDEN UINT64_C(0x4707ce5a4a515bc4)
#define LATER_NATIVE_GOLDEN UINT64_C(0xc1e9b715b70e05b2)
#define LATER_UNIT_GOLDEN UINT64_C(0x8f0bae35776f08ca)

/* Of those with the two of swiglu_oai. */
#define OAI_GOLDEN UINT64_C(0x0001c675a00d3100)

/* Of those of many rows. */
#define MANY_ROWS_GOLDEN UINT64_C(0x15c85c9d38abd90f)
#define MANY_ROWS_NATIVE_GOLDEN UINT64_C(0x52b6f62ee7dd420b)
#define MANY_ROWS_UNIT_GOLDEN UINT64_C(0x9f78acb63f4739d5)

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

/* A batch of one axis. */
static attn_batch
batch_of(ptrdiff_t n)
{
    return (attn_batch){.n = n, .n_axes = 1, .shape = {n}};
}

/* ---- Linear products ---------------------------------------------------------------- */

typedef struct {
    const char *name;
    ptrdiff_t n_batch, n_rows, n_in, n_out;
    attn_activation activation;
    bool bias;
    layout how; /* of all arrays */
} product_spec;

/* Each activation in row form and in tiles, with sizes about those of chains, of vectors
 * and of tasks. */
static const product_spec products[] = {
    {"one of each", 1, 1, 1, 1, ATTN_IDENTITY, true, DENSE},
    {"a row, several tasks", 1, 1, 300, 1100, ATTN_GELU, true, DENSE},
    {"two rows", 2, 1, 129, 37, ATTN_RELU, true, DENSE},
    {"three rows", 1, 3, 128, 600, ATTN_GELU_TANH, true, DENSE},
    {"five rows, transposed", 1, 5, 127, 65, ATTN_SILU, true, TRANSPOSED},
    {"eight rows", 2, 4, 257, 516, ATTN_IDENTITY, false, DENSE},
    {"eight rows, spread", 1, 8, 40, 19, ATTN_SILU, true, SPREAD},
    {"few rows, no terms", 1, 7, 0, 20, ATTN_GELU, true, DENSE},
    {"nine rows", 1, 9, 33, 17, ATTN_IDENTITY, true, DENSE},
    {"tiles, several chains", 1, 17, 300, 40, ATTN_RELU, true, DENSE},
    {"tiles across batches", 3, 31, 129, 70, ATTN_GELU, true, DENSE},
    {"tiles, transposed", 1, 65, 127, 33, ATTN_GELU_TANH, true, TRANSPOSED},
    {"tiles, several tasks of columns", 2, 32, 128, 385, ATTN_SILU, true, DENSE},
    {"tiles, reversed", 1, 200, 131, 50, ATTN_IDENTITY, false, REVERSED},
    {"tiles, no terms", 1, 20, 0, 5, ATTN_GELU_TANH, true, DENSE},
};

static const product_spec later_products[] = {
    {"a row, quick gelu", 1, 1, 300, 1100, ATTN_QUICK_GELU, true, DENSE},
    {"five rows, relu squared", 1, 5, 127, 65, ATTN_RELU2, true, TRANSPOSED},
    {"tiles, quick gelu", 3, 31, 129, 70, ATTN_QUICK_GELU, true, SPREAD},
    {"two rows, tanh", 2, 1, 129, 37, ATTN_TANH, true, DENSE},
    {"tiles, tanh", 1, 17, 300, 40, ATTN_TANH, true, DENSE},
    {"tiles, relu squared", 2, 32, 128, 385, ATTN_RELU2, false, DENSE},
};

/* For more than ATTN_TASK_ROWS rows, of which a task in the form for many has up to 256. */
static const product_spec products_of_many_rows[] = {
    {"a row more than a task", 1, 65, 129, 13, ATTN_IDENTITY, true, DENSE},
    {"whole groups of rows", 1, 112, 128, 5, ATTN_IDENTITY, true, DENSE},
    {"a row more", 1, 113, 128, 6, ATTN_IDENTITY, true, DENSE},
    {"two blocks and parts of panels", 3, 50, 257, 401, ATTN_GELU, true, DENSE},
    {"transposed", 1, 150, 261, 390, ATTN_IDENTITY, true, TRANSPOSED},
    {"transposed, fewer columns than a panel", 1, 130, 30, 7, ATTN_IDENTITY, true,
     TRANSPOSED},
    {"reversed", 1, 128, 140, 24, ATTN_IDENTITY, true, REVERSED},
    {"spread", 2, 97, 131, 50, ATTN_SILU, false, SPREAD},
    {"tasks of many rows", 1, 700, 40, 36, ATTN_IDENTITY, true, DENSE},
    {"no terms", 1, 80, 0, 14, ATTN_IDENTITY, true, DENSE},
};

/* Of input, and of weights and output. */
static const attn_dtype product_dtypes[][2] = {{ATTN_F32, ATTN_F32},
                                               {ATTN_F64, ATTN_F64},
                                               {ATTN_F16, ATTN_F16},
                                               {ATTN_BF16, ATTN_BF16},
                                               {ATTN_BF16, ATTN_F32}};

enum { N_PRODUCT_DTYPES = COUNT(product_dtypes) };

/* Problem n of a list, with each of its products in every dtype. */
static uint64_t
run_product(const product_spec *list, int n, const attn_tier *tier, int n_threads)
{
    const product_spec *s = &list[n / N_PRODUCT_DTYPES];
    const attn_dtype *dtypes = product_dtypes[n % N_PRODUCT_DTYPES];
    attn_call call = {.tier = tier, .n_threads = n_threads};
    problem made;
    attn_linear_problem l = {.batch = batch_of(s->n_batch),
                             .n_rows = s->n_rows,
                             .n_in = s->n_in,
                             .n_out = s->n_out,
                             .activation = s->activation};

    l.arithmetic = attn_storage_of(dtypes[1])->arithmetic;
    make_result(&made, s->how, dtypes[1], &l.batch, 1, s->n_rows, s->n_out);
    l.output = made.p.output;
    add_reals(&made, &l.input, s->how, dtypes[0], 1, s->n_rows, s->n_in, 2);
    add_reals(&made, &l.weight, s->how, dtypes[1], 1, s->n_in, s->n_out, 3);
    if (s->bias) {
        add_reals(&made, &l.bias, s->how, l.arithmetic, 1, 1, s->n_out, 4);
    }
    return end_result(&made, attn_linear(&l, &call));
}

/* ---- Norms -------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    ptrdiff_t n_rows, n_columns;
    bool centre, residual, bias;
} norm_spec;

/* With sizes about those of the 16 chains. */
static const norm_spec norms[] = {
    {"RMS norm of one number", 1, 1, false, false, false},
    {"RMS norm", 65, 33, false, false, false},
    {"RMS norm after a residual", 130, 15, false, true, false},
    {"RMS norm with a bias", 7, 300, false, false, true},
    {"layer norm of one number", 3, 1, true, false, false},
    {"layer norm", 65, 16, true, false, false},
    {"layer norm with a bias", 130, 17, true, false, true},
    {"layer norm after a residual", 9, 300, true, true, true},
};

static uint64_t
run_norm(int n, const attn_tier *tier, int n_threads)
{
    const norm_spec *s = &norms[n / 2];
    attn_dtype dtype = n % 2 == 0 ? ATTN_F32 : ATTN_F64;
    attn_call call = {.tier = tier, .n_threads = n_threads};
    const attn_batch batch = batch_of(1);
    problem made;
    attn_array input = {0}, residual = {0}, weight = {0}, bias = {0};

    make_result(&made, DENSE, dtype, &batch, 1, s->n_rows, s->n_columns);
    add_reals(&made, &input, DENSE, dtype, 1, s->n_rows, s->n_columns, 2);
    add_reals(&made, &weight, DENSE, dtype, 1, 1, s->n_columns, 3);
    if (s->residual) {
        add_reals(&made, &residual, DENSE, dtype, 1, s->n_rows, s->n_columns, 4);
    }
    if (s->bias) {
        add_reals(&made, &bias, DENSE, dtype, 1, 1, s->n_columns, 5);
    }
    attn_norm_problem p = {.n_rows = s->n_rows,
                           .n_columns = s->n_columns,
                           .arithmetic = dtype,
                           .centre = s->centre,
                           .eps = 1e-5,
                           .input = input.data,
                           .residual = residual.data,
                           .weight = weight.data,
                           .bias = bias.data,
                           .output = made.p.output.data};
    attn_normalize(&p, &call);
    return end_result(&made, 0);
}

/* ---- Activations -------------------------------------------------------------------- */

/* By attn_activation, and those after it. */
static const char *const activations[] = {"identity", "relu", "gelu", "gelu, by tanh",
                                          "silu"};
static const char *const later_activations[] = {"quick gelu", "relu squared", "tanh"};

enum { N_NUMBERS = 2003 };

/* Numbers of many magnitudes, and what has none. */
static double
number_at(int k, uint64_t *state)
{
    static const double extremes[] = {0, -0.0, HUGE_VAL, -HUGE_VAL, 1e30, -1e30};
    double x = ldexp(random_unit(state), k % 32 - 20);

    return k < COUNT(extremes) ? extremes[k] : x;
}

static uint64_t
run_activation(int n, const attn_tier *tier, int n_threads)
{
    attn_dtype dtype = n % 2 == 0 ? ATTN_F32 : ATTN_F64;
    attn_call call = {.tier = tier, .n_threads = n_threads};
    const attn_batch batch = batch_of(1);
    problem made;
    uint64_t state = 2;

    make_result(&made, DENSE, dtype, &batch, 1, 1, N_NUMBERS);
    for (int k = 0; k < N_NUMBERS; k++) {
        write_number(element(&made.p, &made.p.output, 0, 0, 0, k), dtype,
                     number_at(k, &state));
    }
    const attn_numbers numbers = {made.p.output.data, dtype};
    const attn_activate_problem p = {.x = numbers,
                                     .output = numbers,
                                     .n = N_NUMBERS,
                                     .arithmetic = dtype,
                                     .activation = (attn_activation)(n / 2)};
    attn_activate(&p, &call);
    return end_result(&made, 0);
}

/* ---- All of them -------------------------------------------------------------------- */

enum {
    FIRST_NORM = COUNT(products) * N_PRODUCT_DTYPES,
    FIRST_ACTIVATION = FIRST_NORM + 2 * COUNT(norms),
    N_PROBLEMS = FIRST_ACTIVATION + 2 * COUNT(activations)
};

static const char *
name_of(int n)
{
    return n < FIRST_NORM         ? products[n / N_PRODUCT_DTYPES].name
           : n < FIRST_ACTIVATION ? norms[(n - FIRST_NORM) / 2].name
                                  : activations[(n - FIRST_ACTIVATION) / 2];
}

static attn_dtype
dtype_of(int n)
{
    return n < FIRST_NORM            ? product_dtypes[n % N_PRODUCT_DTYPES][1]
           : n % 2 == FIRST_NORM % 2 ? ATTN_F32
                                     : ATTN_F64;
}

static uint64_t
run_one(int n, const attn_tier *tier, int n_threads)
{
    return n < FIRST_NORM ? run_product(products, n, tier, n_threads)
           : n < FIRST_ACTIVATION
               ? run_norm(n - FIRST_NORM, tier, n_threads)
               : run_activation(n - FIRST_ACTIVATION, tier, n_threads);
}

void
test_every_tier_gives_layers_the_same_bits(void)
{
    static const corpus c = {.n_problems = N_PROBLEMS,
                             .name = name_of,
                             .dtype = dtype_of,
                             .run = run_one,
                             .golden = GOLDEN,
                             .native_golden = NATIVE_GOLDEN,
                             .unit_golden = UNIT_GOLDEN};
    check_corpus(&c);
}

/* ---- The activations that came later ------------------------------------------------ */

enum {
    FIRST_LATER = COUNT(later_products) * N_PRODUCT_DTYPES,
    N_LATER = FIRST_LATER + 2 * COUNT(later_activations)
};

static const char *
later_name_of(int n)
{
    return n < FIRST_LATER ? later_products[n / N_PRODUCT_DTYPES].name
                           : later_activations[(n - FIRST_LATER) / 2];
}

static attn_dtype
later_dtype_of(int n)
{
    return n < FIRST_LATER            ? product_dtypes[n % N_PRODUCT_DTYPES][1]
           : n % 2 == FIRST_LATER % 2 ? ATTN_F32
                                      : ATTN_F64;
}

static uint64_t
run_later(int n, const attn_tier *tier, int n_threads)
{
    return n < FIRST_LATER ? run_product(later_products, n, tier, n_threads)
                           : run_activation(n - FIRST_LATER + 2 * COUNT(activations),
                                            tier, n_threads);
}

void
test_every_tier_gives_later_activations_the_same_bits(void)
{
    static const corpus c = {.n_problems = N_LATER,
                             .name = later_name_of,
                             .dtype = later_dtype_of,
                             .run = run_later,
                             .golden = LATER_GOLDEN,
                             .native_golden = LATER_NATIVE_GOLDEN,
                             .unit_golden = LATER_UNIT_GOLDEN};
    check_corpus(&c);
}

/* ---- The activations of swiglu_oai --------------------------------------------------- */

/* In row form and in tiles; in the first dtypes, before bfloat16. */
static const product_spec oai_products[] = {
    {"a row, swiglu_oai", 1, 1, 300, 1100, ATTN_SWIGLU_OAI, true, DENSE},
    {"five rows, its factor", 1, 5, 127, 65, ATTN_SWIGLU_OAI_FACTOR, true, TRANSPOSED},
    {"tiles, swiglu_oai", 3, 31, 129, 70, ATTN_SWIGLU_OAI, true, SPREAD},
    {"tiles, its factor", 2, 32, 128, 385, ATTN_SWIGLU_OAI_FACTOR, true, DENSE},
};
static const char *const oai_activations[] = {"swiglu_oai", "its factor"};

enum {
    N_OAI_DTYPES = 3,
    FIRST_OAI = COUNT(oai_products) * N_OAI_DTYPES,
    N_OAI = FIRST_OAI + 2 * COUNT(oai_activations)
};

static const char *
oai_name_of(int n)
{
    return n < FIRST_OAI ? oai_products[n / N_OAI_DTYPES].name
                         : oai_activations[(n - FIRST_OAI) / 2];
}

static attn_dtype
oai_dtype_of(int n)
{
    return n < FIRST_OAI            ? product_dtypes[n % N_OAI_DTYPES][1]
           : n % 2 == FIRST_OAI % 2 ? ATTN_F32
                                    : ATTN_F64;
}

static uint64_t
run_oai(int n, const attn_tier *tier, int n_threads)
{
    int product = n / N_OAI_DTYPES * N_PRODUCT_DTYPES + n % N_OAI_DTYPES;

    return n < FIRST_OAI
               ? run_product(oai_products, product, tier, n_threads)
               : run_activation(n - FIRST_OAI + 2 * ATTN_SWIGLU_OAI, tier, n_threads);
}

void
test_every_tier_gives_swiglu_oai_the_same_bits(void)
{
    static const corpus c = {.n_problems = N_OAI,
                             .name = oai_name_of,
                             .dtype = oai_dtype_of,
                             .run = run_oai,
                             .golden = OAI_GOLDEN,
                             .native_golden = HASH_START};
    check_corpus(&c);
}

/* ---- Products of many rows ----------------------------------------------------------- */

static const char *
many_rows_name_of(int n)
{
    return products_of_many_rows[n / N_PRODUCT_DTYPES].name;
}

static attn_dtype
many_rows_dtype_of(int n)
{
    return product_dtypes[n % N_PRODUCT_DTYPES][1];
}

static uint64_t
run_many_rows(int n, const attn_tier *tier, int n_threads)
{
    return run_product(products_of_many_rows, n, tier, n_threads);
}

void
test_products_of_many_rows_give_the_same_bits(void)
{
    static const corpus c = {.n_problems =
                                 COUNT(products_of_many_rows) * N_PRODUCT_DTYPES,
                             .name = many_rows_name_of,
                             .dtype = many_rows_dtype_of,
                             .run = run_many_rows,
                             .golden = MANY_ROWS_GOLDEN,
                             .native_golden = MANY_ROWS_NATIVE_GOLDEN,
                             .unit_golden = MANY_ROWS_UNIT_GOLDEN};
    check_corpus(&c);
}

/* Bits are the same in tiles. More rows than in a task of them take the form for many, in groups of
 * steps, and no others do. */
void
test_avx2_multiplies_many_rows_in_their_form(void)
{
    static const product_spec list[] = {
        {"many rows", 1, 2 * ATTN_TASK_ROWS, 64, 96, ATTN_IDENTITY, true, DENSE},
        {"a task of tiles", 1, ATTN_TASK_ROWS, 64, 96, ATTN_IDENTITY, true, DENSE}};
    const attn_tier *tier = attn_tier_named("avx2");
    bool before = attn_set_tuning(ATTN_TUNE_MANY_ROWS, true);

    for (int n = 0; tier != NULL && n < COUNT(list); n++) {
        attn_take_count(ATTN_PATH_MANY_ROWS);
        attn_take_count(ATTN_PATH_MANY_ROWS_GROUPS);
        run_product(list, n * N_PRODUCT_DTYPES, tier, 1);
        long count = attn_take_count(ATTN_PATH_MANY_ROWS);
        expect((count > 0) == (n == 0), "%s: %ld products", list[n].name, count);
        expect(attn_take_count(ATTN_PATH_MANY_ROWS_GROUPS) == count,
               "%s: not all in groups", list[n].name);
    }
    attn_set_tuning(ATTN_TUNE_MANY_ROWS, before);
}
