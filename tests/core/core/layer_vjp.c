/* What layers are made of, backwards: the same bits of the gradients of norms and activations
 * from every tier and number of threads. */
#include "core/activate.h"
#include "core/norm.h"
#include "support/check.h"
#include "support/golden.h"
#include "support/problem.h"

#include <math.h>

/* Of the problems below, as golden.h explains. */
#define GOLDEN UINT64_C(0x4416bb078f6aab22)
/* Of those of swiglu_oai. */
#define OAI_GOLDEN UINT64_C(0x1f2422cff6b78a8f)

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

static const attn_batch one = {.n = 1, .n_axes = 1, .shape = {1}};

/* ---- Norms -------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    ptrdiff_t n_rows, n_columns;
    bool centre, bias;
} norm_spec;

/* With sizes about those of the 16 chains, of blocks of rows and of tasks of columns. */
static const norm_spec norms[] = {
    {"RMS norm of one number", 1, 1, false, false},
    {"RMS norm", 65, 33, false, false},
    {"RMS norm with a bias", 7, 300, false, true},
    {"RMS norm, many columns", 64, 528, false, false},
    {"RMS norm, no rows", 0, 5, false, false},
    {"layer norm of one number", 3, 1, true, true},
    {"layer norm", 65, 16, true, false},
    {"layer norm with a bias", 400, 17, true, true},
    {"layer norm, many columns", 129, 257, true, true},
};

/* All gradients are one array: those of weight and bias are two rows behind that of x. */
static uint64_t
run_norm(int n, const attn_tier *tier, int n_threads)
{
    const norm_spec *s = &norms[n / 2];
    attn_dtype dtype = n % 2 == 0 ? ATTN_F32 : ATTN_F64;
    attn_call call = {.tier = tier, .n_threads = n_threads};
    ptrdiff_t n_columns = s->n_columns;
    problem made;
    attn_array grad = {0}, input = {0}, weight = {0}, bias = {0};

    make_result(&made, DENSE, dtype, &one, 1, s->n_rows + 1 + s->bias, n_columns);
    add_reals(&made, &grad, DENSE, dtype, 1, s->n_rows, n_columns, 2);
    add_reals(&made, &input, DENSE, dtype, 1, s->n_rows, n_columns, 3);
    add_reals(&made, &weight, DENSE, dtype, 1, 1, n_columns, 4);
    add_reals(&made, &bias, DENSE, dtype, 1, 1, n_columns, 5);
    char *to = made.p.output.data;
    ptrdiff_t row = n_columns * attn_storage_of(dtype)->bytes;
    const attn_norm_vjp_problem g = {.norm = {.n_rows = s->n_rows,
                                              .n_columns = n_columns,
                                              .arithmetic = dtype,
                                              .centre = s->centre,
                                              .eps = 1e-5,
                                              .input = input.data,
                                              .weight = weight.data,
                                              .bias = s->bias ? bias.data : NULL},
                                     .grad_output = grad.data,
                                     .grad_input = to,
                                     .grad_weight = to + s->n_rows * row,
                                     .grad_bias =
                                         s->bias ? to + (s->n_rows + 1) * row : NULL};
    return end_result(&made, attn_normalize_vjp(&g, &call));
}

/* ---- Activations -------------------------------------------------------------------- */

/* By attn_activation. */
static const char *const activations[] = {"identity",      "relu", "gelu",
                                          "gelu, by tanh", "silu", "quick gelu",
                                          "relu squared",  "tanh"};

/* Of x, of times and grad_output, and of the gradient. */
static const attn_dtype dtypes[][3] = {{ATTN_F32, ATTN_F32, ATTN_F32},
                                       {ATTN_F64, ATTN_F64, ATTN_F64},
                                       {ATTN_F16, ATTN_F32, ATTN_F16},
                                       {ATTN_F32, ATTN_F16, ATTN_F32}};

enum { N_NUMBERS = 2003, N_DTYPES = COUNT(dtypes) };

/* Numbers of many magnitudes, and what has none. */
static double
number_at(int k, uint64_t *state)
{
    static const double extremes[] = {0,    -0.0,  HUGE_VAL, -HUGE_VAL,
                                      1e30, -1e30, 1000,     -1000};
    double x = ldexp(random_unit(state), k % 32 - 20);

    return k < COUNT(extremes) ? extremes[k] : x;
}

static uint64_t
run_activation(int n, const attn_tier *tier, int n_threads)
{
    const attn_dtype *types = dtypes[n % N_DTYPES];
    attn_call call = {.tier = tier, .n_threads = n_threads};
    problem made;
    attn_array x = {0}, times = {0}, grad = {0};
    uint64_t state = 2;

    make_result(&made, DENSE, types[2], &one, 1, 1, N_NUMBERS);
    add_reals(&made, &x, DENSE, types[0], 1, 1, N_NUMBERS, 2);
    add_reals(&made, &times, DENSE, types[1], 1, 1, N_NUMBERS, 3);
    add_reals(&made, &grad, DENSE, types[1], 1, 1, N_NUMBERS, 4);
    for (int k = 0; k < N_NUMBERS; k++) {
        write_number(element(&made.p, &x, 0, 0, 0, k), types[0], number_at(k, &state));
    }
    const attn_activate_problem p = {
        .n = N_NUMBERS,
        .arithmetic = attn_storage_of(types[2])->arithmetic,
        .activation = (attn_activation)(n / N_DTYPES),
        .x = {x.data, types[0]},
        .times = {n / N_DTYPES % 2 == 0 ? times.data : NULL, types[1]},
        .grad_output = {grad.data, types[1]},
        .output = {made.p.output.data, types[2]}};
    attn_activate(&p, &call);
    return end_result(&made, 0);
}

/* ---- All of them -------------------------------------------------------------------- */

enum {
    FIRST_ACTIVATION = 2 * COUNT(norms),
    N_PROBLEMS = FIRST_ACTIVATION + COUNT(activations) * N_DTYPES
};

static const char *
name_of(int n)
{
    return n < FIRST_ACTIVATION ? norms[n / 2].name
                                : activations[(n - FIRST_ACTIVATION) / N_DTYPES];
}

static attn_dtype
dtype_of(int n)
{
    return n >= FIRST_ACTIVATION ? dtypes[(n - FIRST_ACTIVATION) % N_DTYPES][2]
           : n % 2 == 0          ? ATTN_F32
                                 : ATTN_F64;
}

static uint64_t
run_one(int n, const attn_tier *tier, int n_threads)
{
    return n < FIRST_ACTIVATION ? run_norm(n, tier, n_threads)
                                : run_activation(n - FIRST_ACTIVATION, tier, n_threads);
}

/* ---- The activation of swiglu_oai ----------------------------------------------------- */

static const char *
oai_name_of(int n)
{
    (void)n;
    return "swiglu_oai";
}

static attn_dtype
oai_dtype_of(int n)
{
    return dtypes[n][2];
}

static uint64_t
run_oai(int n, const attn_tier *tier, int n_threads)
{
    return run_activation(ATTN_SWIGLU_OAI * N_DTYPES + n, tier, n_threads);
}

void
test_every_tier_gives_gradients_of_swiglu_oai_the_same_bits(void)
{
    static const corpus c = {.n_problems = N_DTYPES,
                             .name = oai_name_of,
                             .dtype = oai_dtype_of,
                             .run = run_oai,
                             .golden = OAI_GOLDEN,
                             .native_golden = HASH_START};
    check_corpus(&c);
}

void
test_every_tier_gives_gradients_of_layers_the_same_bits(void)
{
    static const corpus c = {.n_problems = N_PROBLEMS,
                             .name = name_of,
                             .dtype = dtype_of,
                             .run = run_one,
                             .golden = GOLDEN,
                             .native_golden = HASH_START};
    check_corpus(&c);
}
