/* Linear products with matrices of integers: the same bits of every tier and number of
 * threads, whatever the scales, and rows alone as together. */
#include "core/quantized.h"

#include "core/linear.h"
#include "core/paths.h"
#include "support/check.h"
#include "support/golden.h"
#include "support/problem.h"
#include "support/tiles.h"
#include "support/vnni.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of the problems below, as golden.h explains. */
#define GOLDEN UINT64_C(0xb672b08cc1d1655b)

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

typedef enum { FLOATS, HALVES, POWERS, TWO_LEVELS } levels;

typedef struct {
    const char *name;
    ptrdiff_t n_batch, n_rows, n_in, n_out;
    int bits, zero; /* below 0: which values codes of 4 bits stand for */
    ptrdiff_t group;
    levels levels;
    bool minimum, bias;
    double scale; /* of scales */
    layout how;   /* of input and output */
    attn_activation activation;
} product_spec;

enum { CURVE = -1, E2M1 = -2 }; /* of IQ4_NL, and MXFP4 */

static const int8_t values[][ATTN_CODE_VALUES] = {
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};

static const int8_t *
values_of(const product_spec *s)
{
    return s->zero < 0 ? values[-s->zero - 1] : NULL;
}

static int
zero_of(const product_spec *s)
{
    return s->zero < 0 ? 0 : s->zero;
}

/* Sizes about those of groups, chains, tiles, panels, stored columns and tasks. */
static const product_spec products[] = {
    {"one of each", 1, 1, 1, 1, 8, 0, 16, FLOATS, false, false, 1, DENSE, 0},
    {"a row, a short last group", 1, 1, 300, 1100, 8, 0, 128, FLOATS, false, true, 1,
     DENSE, ATTN_GELU},
    {"two rows of a short group", 2, 1, 37, 50, 8, 0, 64, FLOATS, false, true, 1, DENSE,
     ATTN_RELU},
    {"three rows, whole columns", 1, 3, 1000, 96, 8, 0, ATTN_MAX_GROUP, FLOATS, false,
     false, 1, DENSE, 0},
    {"five rows, spread", 1, 5, 127, 65, 8, 0, 32, FLOATS, false, true, 1, SPREAD,
     ATTN_SILU},
    {"eight rows, transposed", 2, 4, 257, 400, 8, 0, 128, FLOATS, false, false, 1,
     TRANSPOSED, 0},
    {"no terms", 1, 7, 0, 20, 8, 0, 32, FLOATS, false, true, 1, DENSE, ATTN_GELU},
    {"seventeen rows of groups of 16", 1, 17, 176, 49, 8, 0, 16, FLOATS, false, false,
     1, DENSE, 0},
    {"rows of several tasks", 3, 31, 136, 70, 8, 0, 128, FLOATS, false, true, 1, DENSE,
     0},
    {"many rows, reversed", 1, 200, 131, 50, 8, 0, 64, FLOATS, false, false, 1,
     REVERSED, ATTN_GELU_TANH},
    {"many rows, several tasks of columns", 1, 150, 256, 790, 8, 0, 128, FLOATS, false,
     true, 1, DENSE, 0},
    {"whole columns that are cut", 1, 2, ATTN_MAX_GROUP + 10, 5, 8, 0, ATTN_MAX_GROUP,
     FLOATS, false, false, 1, DENSE, 0},
    {"subnormal scales", 1, 9, 70, 48, 8, 0, 32, FLOATS, false, true, 1e-42, DENSE, 0},
    {"huge scales", 1, 4, 70, 48, 8, 0, 32, FLOATS, false, false, 1e37, DENSE, 0},
    {"float16 scales", 1, 6, 160, 60, 8, 0, 32, HALVES, false, false, 1, DENSE, 0},
    {"a minimum", 1, 13, 96, 60, 8, 0, 32, HALVES, true, false, 1, DENSE, 0},
    {"two levels", 1, 3, 300, 50, 8, 0, 16, TWO_LEVELS, false, false, 1, DENSE, 0},
    {"4 bits", 1, 1, 300, 200, 4, 8, 32, FLOATS, false, true, 1, DENSE, 0},
    {"4 bits, many rows", 1, 70, 100, 97, 4, 8, 32, FLOATS, false, true, 1, DENSE, 0},
    {"4 bits in float16", 2, 5, 64, 48, 4, 8, 32, HALVES, false, false, 1, DENSE, 0},
    {"4 bits with a minimum", 1, 18, 161, 53, 4, 0, 32, HALVES, true, true, 1, DENSE,
     ATTN_SILU},
    {"4 bits of two levels", 1, 21, 520, 49, 4, 0, 32, TWO_LEVELS, true, false, 1,
     DENSE, 0},
    {"4 bits of groups of 128", 1, 4, 200, 40, 4, 8, 128, FLOATS, false, false, 1,
     DENSE, 0},
    {"5 bits", 1, 1, 100, 97, 5, 16, 32, HALVES, false, true, 1, DENSE, 0},
    {"5 bits with a minimum", 1, 19, 161, 53, 5, 0, 32, HALVES, true, false, 1, DENSE,
     ATTN_SILU},
    {"5 bits of two levels", 1, 70, 300, 49, 5, 0, 32, TWO_LEVELS, true, false, 1,
     DENSE, 0},
    {"5 bits of groups of 96", 2, 2, 250, 40, 5, 31, 96, FLOATS, false, false, 1, DENSE,
     0},
    {"6 bits of groups of 16", 1, 1, 300, 200, 6, 32, 16, TWO_LEVELS, false, true, 1,
     DENSE, 0},
    {"6 bits, many rows", 1, 75, 530, 49, 6, 32, 16, TWO_LEVELS, false, false, 1, DENSE,
     0},
    {"6 bits with a minimum", 1, 9, 37, 50, 6, 0, 32, HALVES, true, true, 1, DENSE, 0},
    {"6 bits of groups of 48", 1, 4, 200, 96, 6, 63, 48, FLOATS, false, false, 1, DENSE,
     0},
    {"values", 1, 1, 300, 200, 4, CURVE, 32, HALVES, false, true, 1, DENSE, 0},
    {"values, many rows", 1, 70, 520, 97, 4, CURVE, 32, TWO_LEVELS, false, true, 1,
     DENSE, ATTN_SILU},
    {"values with a minimum", 2, 5, 161, 53, 4, CURVE, 32, HALVES, true, false, 1,
     DENSE, 0},
    {"values of 16 rows, four rows", 1, 4, 100, 48, 4, CURVE, 16, FLOATS, false, false,
     1, DENSE, 0},
    {"powers of two", 1, 1, 600, 200, 4, E2M1, 32, POWERS, false, true, 1, DENSE, 0},
    {"powers of two, many rows", 1, 70, 100, 97, 4, E2M1, 32, POWERS, false, false, 1,
     DENSE, 0},
    {"powers of two of 8 bits", 1, 3, 70, 48, 8, 0, 128, POWERS, true, false, 1, DENSE,
     0},
};

/* Rows as they are or rounded, of each dtype of input and output. */
static const struct {
    bool rounds_rows;
    attn_dtype dtype;
} ways[] = {{false, ATTN_F32}, {true, ATTN_F32}, {false, ATTN_BF16}, {true, ATTN_F16}};

enum { N_WAYS = COUNT(ways), N_PROBLEMS = COUNT(products) * N_WAYS };

static void *
new_bytes(size_t n)
{
    void *memory = calloc(n + 1, 1); /* of nothing, too, it is not NULL */

    if (memory == NULL) {
        abort();
    }
    return memory;
}

/* Random scales of n numbers; all of them mean what float16 can. */
static attn_factors
draw_factors(ptrdiff_t n_panels, ptrdiff_t n_groups, const product_spec *s,
             uint64_t *state)
{
    static const ptrdiff_t size[] = {sizeof(float), sizeof(uint16_t), 1, 1};
    ptrdiff_t n = n_panels * n_groups * ATTN_PANEL_COLUMNS;
    ptrdiff_t n_coarse = n_panels * attn_divide_up(n_groups, 8) * ATTN_PANEL_COLUMNS;
    char *fine = new_bytes((size_t)(n * size[s->levels]));
    uint16_t *coarse = NULL;

    for (ptrdiff_t i = 0; i < n; i++) {
        double x = random_unit(state) * s->scale;
        if (s->levels == TWO_LEVELS) {
            fine[i] = (char)random_below(state, 64);
        } else if (s->levels == POWERS) { /* a few of them are the least, or huge */
            ptrdiff_t e = random_below(state, 40);
            fine[i] = (char)(e < 2 ? e : e == 2 ? 254 : 100 + e);
        } else {
            write_number(fine + i * size[s->levels],
                         s->levels == HALVES ? ATTN_F16 : ATTN_F32, x);
        }
    }
    if (s->levels == TWO_LEVELS) {
        coarse = new_bytes((size_t)n_coarse * sizeof *coarse);
        for (ptrdiff_t i = 0; i < n_coarse; i++) {
            write_number((char *)(coarse + i), ATTN_F16, random_unit(state));
        }
    }
    return (attn_factors){.fine = fine,
                          .dtype = s->levels == HALVES   ? ATTN_F16
                                   : s->levels == POWERS ? ATTN_I8
                                                         : ATTN_F32,
                          .coarse = coarse};
}

/* Puts a code in its place among zeros: that of row k, column j, of n_rows in a panel. */
static void
put_code(char *codes, int bits, ptrdiff_t n_rows, ptrdiff_t j, ptrdiff_t k, int code)
{
    ptrdiff_t line = ATTN_PANEL_COLUMNS * ATTN_QUAD, unit = attn_code_unit(bits);
    ptrdiff_t row = j / ATTN_PANEL_COLUMNS * n_rows + k / unit * unit;
    ptrdiff_t quad = k % unit / ATTN_QUAD;
    char *at = codes + row * ATTN_PANEL_COLUMNS * bits / 8 +
               j % ATTN_PANEL_COLUMNS * ATTN_QUAD + k % ATTN_QUAD;

    if (bits == 8) {
        at[quad * line] = (char)code;
        return;
    }
    at[quad / 2 * line] = (char)(at[quad / 2 * line] | (code & 15) << quad % 2 * 4);
    if (bits > 4) {
        at += unit / ATTN_CODE_ROWS * line;
        *at = (char)(*at | code >> 4 << quad * (bits - 4));
    }
}

/* Random codes of so many bits, or the same less `zero` in 8. What fills up rows and panels
 * is zero. */
static char *
draw_codes(const product_spec *s, bool widens, ptrdiff_t n_panels, uint64_t *state)
{
    int bits = widens ? 8 : s->bits, less = widens ? zero_of(s) : 0;
    ptrdiff_t n_rows = attn_code_rows(s->n_in, bits);
    ptrdiff_t n_columns = n_panels * ATTN_PANEL_COLUMNS;
    char *codes = new_bytes((size_t)(n_columns * n_rows * bits / 8));

    for (ptrdiff_t j = 0; j < n_columns; j++) {
        for (ptrdiff_t k = 0; k < n_rows; k++) {
            bool is_there = j < s->n_out && k < s->n_in;
            int code = is_there ? (int)random_below(state, 1 << s->bits) : zero_of(s);
            bool is_value = widens && is_there && s->zero < 0;
            put_code(codes, bits, n_rows, j, k,
                     is_value ? values_of(s)[code] : code - less);
        }
    }
    return codes;
}

static attn_quantized
draw_weights(const product_spec *s, bool widens)
{
    uint64_t state = 3;
    ptrdiff_t n_panels = attn_divide_up(s->n_out, ATTN_PANEL_COLUMNS);
    ptrdiff_t n_groups = attn_divide_up(s->n_in, s->group);
    attn_quantized q = {.bits = widens ? 8 : s->bits,
                        .zero = widens ? 0 : zero_of(s),
                        .values = widens ? NULL : values_of(s),
                        .group = s->group,
                        .groups_per_block = 8,
                        .codes = draw_codes(s, widens, n_panels, &state),
                        .scale = draw_factors(n_panels, n_groups, s, &state)};

    if (s->minimum) {
        q.minimum = draw_factors(n_panels, n_groups, s, &state);
    }
    return q;
}

static void
free_weights(attn_quantized *q)
{
    free((void *)(uintptr_t)q->codes);
    free((void *)(uintptr_t)q->scale.fine);
    free((void *)(uintptr_t)q->scale.coarse);
    free((void *)(uintptr_t)q->minimum.fine);
    free((void *)(uintptr_t)q->minimum.coarse);
}

/* Some rows of zeros, of numbers that are not finite, subnormal or huge. What activations make
 * of NaN has other bits on other CPUs. */
static void
make_special(problem *made, const attn_array *input, const product_spec *s)
{
    static const double specials[] = {0, NAN, HUGE_VAL, 1e-42, 1e30, -HUGE_VAL};

    for (ptrdiff_t r = 5;
         r < s->n_rows && r - 5 < COUNT(specials) && s->activation == ATTN_IDENTITY;
         r++) {
        double x = specials[r - 5];
        for (ptrdiff_t k = 0; k < s->n_in; k++) {
            char *at = element(&made->p, input, 0, 0, r, k);
            if (x == 0 || (isfinite(x) && k % 3 == 0) || k == s->n_in / 2) {
                write_number(at, input->dtype, x * (double)(k % 5 + 1));
            }
        }
    }
}

/* Makes problem n of the list, with its weights, whose codes may have 8 bits. */
static void
make_product(int n, bool widens, problem *made, attn_quantized *q,
             attn_linear_problem *l)
{
    const product_spec *s = &products[n / N_WAYS];
    attn_dtype dtype = ways[n % N_WAYS].dtype;

    *q = draw_weights(s, widens);
    q->rounds_rows = ways[n % N_WAYS].rounds_rows;
    *l = (attn_linear_problem){
        .batch = {.n = s->n_batch, .n_axes = 1, .shape = {s->n_batch}},
        .n_rows = s->n_rows,
        .n_in = s->n_in,
        .n_out = s->n_out,
        .activation = s->activation,
        .arithmetic = ATTN_F32,
        .packed = true,
        .quantized = q};
    make_result(made, s->how, dtype, &l->batch, 1, s->n_rows, s->n_out);
    l->output = made->p.output;
    l->weight.dtype = dtype;
    add_reals(made, &l->input, s->how, dtype, 1, s->n_rows, s->n_in, 2);
    make_special(made, &l->input, s);
    if (s->bias) {
        add_reals(made, &l->bias, s->how, ATTN_F32, 1, 1, s->n_out, 4);
    }
}

static const char *
name_of(int n)
{
    return products[n / N_WAYS].name;
}

static attn_dtype
dtype_of(int n)
{
    (void)n;
    return ATTN_F32; /* as products of bfloat16 numbers none of them is */
}

static uint64_t
run_widened(int n, bool widens, const attn_tier *tier, int n_threads)
{
    attn_call call = {.tier = tier, .n_threads = n_threads};
    attn_quantized q;
    attn_linear_problem l;
    problem made;

    make_product(n, widens, &made, &q, &l);
    uint64_t hash = end_result(&made, attn_linear(&l, &call));
    free_weights(&q);
    return hash;
}

static uint64_t
run_one(int n, const attn_tier *tier, int n_threads)
{
    return run_widened(n, false, tier, n_threads);
}

void
test_every_tier_gives_products_of_integers_the_same_bits(void)
{
    static const corpus c = {.n_problems = N_PROBLEMS,
                             .name = name_of,
                             .dtype = dtype_of,
                             .run = run_one,
                             .integers = true,
                             .golden = GOLDEN,
                             .native_golden = HASH_START};
    check_corpus(&c);
}

/* Codes are the same numbers in however many bits they are kept. */
void
test_codes_of_fewer_bits_have_the_bits_of_8(void)
{
    const attn_tier *tier = attn_tier_named("scalar");

    for (int n = 0; n < N_PROBLEMS; n++) {
        if (products[n / N_WAYS].bits < 8) {
            expect(run_widened(n, true, tier, 1) == run_one(n, tier, 1),
                   "%s: other bits", name_of(n));
        }
    }
}

/* One of the problems whose codes all are the largest, and whose numbers all are the same in a row:
 * 1, or numbers whose digits are as large as they can be together. */
static uint64_t
run_largest(int n, const attn_tier *tier)
{
    static const double numbers[] = {1, 126 * ATTN_RADIX + 126 * 256 + 127,
                                     126 * ATTN_RADIX - 126 * 256 - 128};
    attn_call call = {.tier = tier, .n_threads = 1};
    attn_quantized q;
    attn_linear_problem l;
    problem made;

    make_product(n, false, &made, &q, &l);
    ptrdiff_t n_codes = attn_divide_up(l.n_out, ATTN_PANEL_COLUMNS) *
                        ATTN_PANEL_COLUMNS * attn_code_rows(l.n_in, q.bits);
    memset((void *)(uintptr_t)q.codes, q.bits == 8 ? 127 : 255,
           (size_t)(n_codes * q.bits / 8));
    for (ptrdiff_t b = 0; b < l.batch.n; b++) {
        for (ptrdiff_t r = 0; r < l.n_rows; r++) {
            for (ptrdiff_t k = 0; k < l.n_in; k++) {
                double number = ldexp(numbers[r / 2 % COUNT(numbers)], -20);
                write_number(element(&made.p, &l.input, b, 0, r, k), l.input.dtype,
                             r % 2 == 0 ? number : -number);
            }
        }
    }
    uint64_t hash = end_result(&made, attn_linear(&l, &call));
    free_weights(&q);
    return hash;
}

/* Instructions that add some products in 16 bits must not saturate. */
void
test_sums_of_the_largest_codes_are_exact(void)
{
    const attn_tier *tier;

    for (int n = 0; n < N_PROBLEMS; n++) {
        uint64_t hash = run_largest(n, attn_tier_named("scalar"));
        for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
            expect(run_largest(n, tier) == hash, "%s on %s: other bits", name_of(n),
                   tier->name);
        }
    }
}

/* Has a tier the scalar tier's bits? It may be none. */
static void
check_alike(const attn_tier *tier)
{
    for (int n = 0; tier != NULL && n < N_PROBLEMS; n++) {
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            uint64_t hash = run_one(n, attn_tier_named("scalar"), n_threads);
            expect(run_one(n, tier, n_threads) == hash, "%s, %d threads: other bits",
                   name_of(n), n_threads);
        }
    }
}

/* The source of the kernel for AMX runs with tiles in plain C. */
void
test_tiles_give_products_of_integers_the_same_bits(void)
{
    attn_tier room;

    check_alike(tier_with_tiles(&room));
}

/* That of the kernel for AVX-VNNI runs with AVX512-VNNI. */
void
test_short_vectors_give_products_of_integers_the_same_bits(void)
{
    attn_tier room;

    check_alike(tier_with_vnni(&room));
}

/* Bits are the same row by row. Four rounded rows or more take tiles that fill the registers, with
 * sums of 16 bits for codes of 4; no others do. Those of 16 rows or more are crossed, unless codes
 * are narrow. */
void
test_avx2_multiplies_rounded_rows_in_tiles(void)
{
    const attn_tier *tier = attn_tier_named("avx2");

    for (int n = 0; tier != NULL && n < N_PROBLEMS; n++) {
        const product_spec *s = &products[n / N_WAYS];
        const ptrdiff_t n_rows = s->n_batch * s->n_rows;
        bool tiles = ways[n % N_WAYS].rounds_rows && n_rows >= 4 && s->n_in > 0;
        bool crossed = tiles && n_rows >= 16 && (s->bits == 8 || s->zero < 0);
        attn_take_count(ATTN_PATH_ROUNDED_TILES);
        attn_take_count(ATTN_PATH_ROUNDED_TILE_SHORTS);
        attn_take_count(ATTN_PATH_CROSSED_TILES);
        run_one(n, tier, 1);
        long count = attn_take_count(ATTN_PATH_ROUNDED_TILES);
        long n_shorts = attn_take_count(ATTN_PATH_ROUNDED_TILE_SHORTS);
        expect((count > 0) == tiles, "%s: %ld tiles", s->name, count);
        expect(n_shorts == (s->bits == 4 && s->zero >= 0 ? count : 0),
               "%s: %ld tiles of %ld with sums of 16 bits", s->name, n_shorts, count);
        long n_crossed = attn_take_count(ATTN_PATH_CROSSED_TILES);
        expect((n_crossed > 0) == crossed, "%s: %ld tiles of %ld are crossed", s->name,
               n_crossed, count);
    }
}

/* Four rows or more that are not rounded take tiles whose digits are bytes, with codes of 4 bits; no
 * others do. */
void
test_avx2_splits_rows_into_bytes(void)
{
    const attn_tier *tier = attn_tier_named("avx2");

    for (int n = 0; tier != NULL && n < N_PROBLEMS; n++) {
        const product_spec *s = &products[n / N_WAYS];
        bool bytes = !ways[n % N_WAYS].rounds_rows && s->n_batch * s->n_rows >= 4 &&
                     s->n_in > 0 && s->bits == 4 && s->zero >= 0;
        attn_take_count(ATTN_PATH_SPLIT_BYTES);
        run_one(n, tier, 1);
        long count = attn_take_count(ATTN_PATH_SPLIT_BYTES);
        expect((count > 0) == bytes, "%s: %ld tiles", s->name, count);
    }
}

/* One row of the problem's in a call of its own: has it the output's bits? */
static bool
is_alone(const problem *made, const attn_linear_problem *l, ptrdiff_t b, ptrdiff_t r,
         const attn_tier *tier)
{
    attn_call call = {.tier = tier, .n_threads = 1};
    attn_linear_problem one = *l;
    ptrdiff_t size = attn_storage_of(l->output.dtype)->bytes;
    char *row = new_bytes((size_t)(l->n_out * size));
    bool same = true;

    one.batch = (attn_batch){.n = 1, .n_axes = 1, .shape = {1}};
    one.n_rows = 1;
    one.input.data = element(&made->p, &l->input, b, 0, r, 0);
    one.output = (attn_array){.data = row,
                              .dtype = l->output.dtype,
                              .column_stride = size,
                              .row_stride = l->n_out * size};
    expect(attn_linear(&one, &call) == 0, "no memory");
    for (ptrdiff_t j = 0; j < l->n_out; j++) {
        same &= memcmp(row + j * size, element(&made->p, &l->output, b, 0, r, j),
                       (size_t)size) == 0;
    }
    free(row);
    return same;
}

void
test_rows_of_products_of_integers_have_the_bits_they_have_alone(void)
{
    const attn_tier *tier;

    for (int t = 0; (tier = attn_tier_at(t)) != NULL; t++) {
        for (int n = 0; n < N_PROBLEMS; n++) {
            attn_call call = {.tier = tier, .n_threads = 2};
            attn_quantized q;
            attn_linear_problem l;
            problem made;
            make_product(n, false, &made, &q, &l);
            expect(attn_linear(&l, &call) == 0, "no memory");
            for (ptrdiff_t r = 0; r < l.n_rows && r < 16; r++) {
                expect(is_alone(&made, &l, l.batch.n - 1, r, tier),
                       "%s, row %td alone on %s: other bits", name_of(n), r,
                       tier->name);
            }
            free_problem(&made);
            free_weights(&q);
        }
    }
}
