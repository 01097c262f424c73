/* The pairs of bfloat16 numbers of vec/avx512_bf16.h against plain definitions, where the
 * CPU has them. */
#include "core/half.h"
#include "support/check.h"
#include "support/functions.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define COUNT(array) (ptrdiff_t)(sizeof(array) / sizeof((array)[0]))

typedef uint32_t pair; /* the lower term in the lower half */

/* Those of this CPU; says so where there are none. */
static const pair_functions *
functions_or_note(void)
{
    const pair_functions *f = pair_functions_here();

    if (f == NULL) {
        note("this CPU has none");
    }
    return f;
}

/* ---- Loads and stores --------------------------------------------------------------- */

static void
expect_copies(const pair_functions *f, uint64_t *state)
{
    static char from[4 * PIECE + 2], to[4 * PIECE + 2];

    for (ptrdiff_t i = 0; i < COUNT(from); i++) {
        from[i] = (char)random_bits(state);
    }
    for (int offset = 0; offset <= 2; offset += 2) {
        f->copy(from + offset, to + 2 - offset, PIECE);
        expect(memcmp(from + offset, to + 2 - offset, sizeof(pair[PIECE])) == 0,
               "v_load_pairs or v_store_pairs, %d bytes off", offset);
    }
}

static void
expect_zips(const pair_functions *f, uint64_t *state)
{
    static uint16_t low[PIECE], high[PIECE];
    static pair got[PIECE];
    ptrdiff_t n_wrong = 0;

    for (ptrdiff_t i = 0; i < PIECE; i++) {
        low[i] = (uint16_t)random_bits(state);
        high[i] = (uint16_t)random_bits(state);
    }
    f->zip(low, high, got, PIECE);
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        n_wrong += got[i] != (low[i] | (pair)high[i] << 16);
    }
    expect(n_wrong == 0, "v_zip_bf16: %td wrong", n_wrong);
}

static void
expect_one_everywhere(const pair_functions *f, uint64_t *state)
{
    pair got[PIECE], want = (pair)random_bits(state);
    ptrdiff_t n_wrong = 0;

    f->set1(want, got);
    for (ptrdiff_t i = 0; i < f->lanes; i++) {
        n_wrong += got[i] != want;
    }
    expect(n_wrong == 0, "v_set1_pair of %08x: %td wrong", want, n_wrong);
}

/* Of any bits, signalling NaNs among them. */
static void
expect_transposes(const pair_functions *f, uint64_t *state)
{
    pair square[PIECE], want[PIECE];
    ptrdiff_t n = f->lanes;

    for (ptrdiff_t i = 0; i < n * n; i++) {
        square[i] = i % 3 == 0 ? 0x7f800001 + (pair)i : (pair)random_bits(state);
        want[i % n * n + i / n] = square[i];
    }
    f->transpose(square);
    expect(memcmp(square, want, sizeof(pair) * (size_t)(n * n)) == 0,
           "v_transpose_pairs");
}

void
test_pairs_are_loaded_and_stored(void)
{
    const pair_functions *f = functions_or_note();
    uint64_t state = 41;

    for (int n = 0; n < 20 && f != NULL; n++) {
        expect_copies(f, &state);
        expect_zips(f, &state);
        expect_one_everywhere(f, &state);
        expect_transposes(f, &state);
    }
}

/* ---- Rounding ----------------------------------------------------------------------- */

/* A subnormal number counts as 0 of its sign. */
static float
flush(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

static void
expect_rounded(const pair_functions *f, const float low[PIECE], const float high[PIECE])
{
    static pair got[PIECE];
    static uint16_t rounded[PIECE];

    f->pair(low, high, got, PIECE);
    f->round(low, rounded, PIECE);
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        pair want = attn_to_bf16(flush(low[i])) | (pair)attn_to_bf16(flush(high[i]))
                                                      << 16;
        expect(got[i] == want, "v_pair of %a, %a is %08x", (double)low[i],
               (double)high[i], got[i]);
        expect(rounded[i] == (uint16_t)want, "v_store_rounded of %a is %04x",
               (double)low[i], rounded[i]);
    }
}

/* Each bfloat16 number, the middle to the next one, and their neighbours; then any bits. */
void
test_pairs_are_rounded_floats(void)
{
    static const uint32_t beside[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    static float low[PIECE], high[PIECE];
    const pair_functions *f = functions_or_note();
    uint64_t state = 42;
    ptrdiff_t filled = 0;

    for (uint32_t bits = 0; bits <= 0xffff && f != NULL; bits++) {
        for (ptrdiff_t k = 0; k < COUNT(beside); k++) {
            low[filled] = attn_float_from_bits(bits << 16 | beside[k]);
            high[filled++] = attn_float_from_bits(
                ~bits << 16 | beside[random_below(&state, COUNT(beside))]);
            if (filled == PIECE) {
                expect_rounded(f, low, high);
                filled = 0;
            }
        }
    }
    for (int n = 0; n < 200 && f != NULL; n++) {
        for (ptrdiff_t i = 0; i < PIECE; i++) {
            low[i] = attn_float_from_bits((uint32_t)random_bits(&state));
            high[i] = attn_float_from_bits((uint32_t)random_bits(&state));
        }
        expect_rounded(f, low, high);
    }
}

/* ---- Dot products ------------------------------------------------------------------- */

/* sum + a.low * b.low + a.high * b.high for each i < PIECE. */
typedef struct {
    pair a[PIECE], b[PIECE];
    float sum[PIECE], got[PIECE];
} dots;

/* Half 0 or 1 of a pair. */
static float
term(pair x, int half)
{
    return attn_from_bf16((uint16_t)(x >> (16 * half)));
}

static pair
pair_of(double low, double high)
{
    return attn_to_bf16((float)low) | (pair)attn_to_bf16((float)high) << 16;
}

/* The definition: the product of the upper halves, then that of the lower ones is added,
 * each time with one rounding to nearest; subnormal numbers, given or resulting, are 0.
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
 * VDPBF16PS. */
static float
defined_dot(const dots *d, ptrdiff_t i)
{
    float sum = flush(d->sum[i]);

    for (int half = 1; half >= 0; half--) {
        float a = flush(term(d->a[i], half)), b = flush(term(d->b[i], half));
        sum = flush(fmaf(a, b, sum));
    }
    return sum;
}

/* The same bits, or both NaN. */
static bool
same_floats(float x, float y)
{
    return (isnan(x) && isnan(y)) || attn_bits_from_float(x) == attn_bits_from_float(y);
}

static void
expect_defined_dots(const pair_functions *f, dots *d)
{
    f->dot(d->a, d->b, d->sum, d->got, PIECE);
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        expect(same_floats(d->got[i], defined_dot(d, i)),
               "v_dot_pairs of %08x, %08x, %a is %a, not %a", d->a[i], d->b[i],
               (double)d->sum[i], (double)d->got[i], (double)defined_dot(d, i));
    }
}

/* Integers and powers of 2 whose sums are exact in any order. */
static void
expect_exact_dots(const pair_functions *f, dots *d, uint64_t *state)
{
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        double x[4];
        double unit = ldexp(1, (int)random_below(state, 40) - 20);
        for (int k = 0; k < 4; k++) {
            x[k] = 2 * (double)(random_below(state, 257) - 128);
        }
        d->a[i] = pair_of(x[0] * unit, x[1]);
        d->b[i] = pair_of(x[2], x[3] * unit);
        d->sum[i] = (float)((double)(random_below(state, 1 << 20) - (1 << 19)) * unit);
    }
    expect_defined_dots(f, d);
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        double want = (double)d->sum[i];
        for (int half = 0; half < 2; half++) {
            want += (double)term(d->a[i], half) * (double)term(d->b[i], half);
        }
        expect((double)d->got[i] == want, "v_dot_pairs of %08x, %08x, %a is %a",
               d->a[i], d->b[i], (double)d->sum[i], (double)d->got[i]);
    }
}

/* Any terms about 1, often of like magnitudes and opposite signs: off by one rounding of
 * each of two sums at most. Returns the largest error in units of that. */
static double
expect_near_dots(const pair_functions *f, dots *d, uint64_t *state)
{
    double worst = 0;

    for (ptrdiff_t i = 0; i < PIECE; i++) {
        double scale = ldexp(1, (int)random_below(state, 20) - 10);
        d->a[i] = pair_of(random_unit(state) * scale, random_unit(state));
        d->b[i] = pair_of(random_unit(state), random_unit(state) / scale);
        d->sum[i] = (float)random_unit(state);
        if (i % 3 == 0) { /* the lower product goes against the sum */
            d->sum[i] =
                -term(d->a[i], 0) * term(d->b[i], 0) * (1 + (float)(i % 5) * 0x1p-9f);
        }
    }
    expect_defined_dots(f, d);
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        double low = (double)term(d->a[i], 0) * (double)term(d->b[i], 0);
        double high = (double)term(d->a[i], 1) * (double)term(d->b[i], 1);
        double sum = (double)d->sum[i];
        double error = fabs((double)d->got[i] - (sum + low + high));
        error /= 0x1p-23 * (fabs(sum) + fabs(low) + fabs(high));
        expect(error <= 1 + 0x1p-20, "v_dot_pairs of %08x, %08x, %a is %a", d->a[i],
               d->b[i], sum, (double)d->got[i]);
        worst = fmax(worst, error);
    }
    return worst;
}

static const double specials[] = {
    0.0,         -0.0,      1.0,          -1.0,       0x1.02p0,  3e38,
    -3e38,       0x1p-126,  -0x1.02p-126, 0x1.fcp-64, 0x1p-63,   0x1p-100,
    0x1.fcp-127, -0x1p-130, 0x1p-133,     INFINITY,   -INFINITY, (double)NAN};

/* All products and sums of special numbers, beside others in the other half. */
static void
expect_special_dots(const pair_functions *f, dots *d, uint64_t *state)
{
    const ptrdiff_t n = COUNT(specials);

    for (ptrdiff_t first = 0; first < 4 * n * n * n; first += PIECE) {
        for (ptrdiff_t i = 0; i < PIECE; i++) {
            ptrdiff_t k = (first + i) / 2;
            double x = specials[k % n], z = specials[random_below(state, n)];
            double y = specials[k / n % n], u = specials[random_below(state, n)];
            d->a[i] = i % 2 == 0 ? pair_of(x, z) : pair_of(z, x);
            d->b[i] = i % 2 == 0 ? pair_of(y, u) : pair_of(u, y);
            d->sum[i] = (float)specials[k / (n * n) % n];
        }
        expect_defined_dots(f, d);
    }
}

void
test_dot_products_of_pairs_are_those_of_the_definition(void)
{
    static dots d;
    const pair_functions *f = functions_or_note();
    uint64_t state = 43;
    double worst = 0;
    const int n_pieces = exhaustive ? 20000 : 200;

    if (f == NULL) {
        return;
    }
    for (int n = 0; n < n_pieces; n++) {
        expect_exact_dots(f, &d, &state);
        worst = fmax(worst, expect_near_dots(f, &d, &state));
    }
    expect_special_dots(f, &d, &state);
    note("off by %.2f of two float rounding units of the terms at most", worst);
}
