/* Each tier's vocabulary against the scalar one's, which is the definition. */
#include "core/tiers.h"
#include "support/check.h"
#include "support/functions.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define COUNT(array) (ptrdiff_t)(sizeof(array) / sizeof((array)[0]))

/* ---- Vocabulary --------------------------------------------------------------------- */

static const double specials[] = {
    0.0,       -0.0, 1.0,   -1.0,     0.5,     1.5,         -2.5,     1e-40,
    -1e-40,    1e30, -1e30, 0x1p-149, FLT_MIN, FLT_MAX,     -FLT_MAX, INFINITY,
    -INFINITY, NAN,  0.1,   -0.3,     3.0,     1 + 0x1p-23, 123456.7, -8388607.5};

/* All pairs of special numbers, then random ones, of magnitudes up to 2^20. */
static void
draw_operands(int bits, reals *x, reals *y, reals *z)
{
    uint64_t state = 31;
    const ptrdiff_t n = COUNT(specials);

    for (ptrdiff_t i = 0; i < PIECE; i++) {
        bool listed = i < n * n;
        double a = listed ? specials[i / n] : ldexp(random_unit(&state), (int)(i % 20));
        double b = listed ? specials[i % n] : ldexp(random_unit(&state), (int)(i % 7));
        double c = listed ? specials[(i + i / n) % n] : -a * b;
        if (bits == 32) {
            x->f32[i] = (float)a, y->f32[i] = (float)b, z->f32[i] = (float)c;
        } else {
            x->f64[i] = a, y->f64[i] = b, z->f64[i] = c;
        }
    }
}

/* NaNs are all the same here: which operand's payload is kept is left open. */
static bool
same_values(const reals *a, const reals *b, int bits)
{
    bool same = true;

    for (ptrdiff_t i = 0; i < PIECE; i++) {
        bool nan = isnan(real_at(a, bits, i)) && isnan(real_at(b, bits, i));
        same = same && (nan || get_bits(a, bits, i) == get_bits(b, bits, i));
    }
    return same;
}

static void
expect_same_arithmetic(const functions *f, const functions *scalar)
{
    static reals x, y, z, got, want;
    const int bits = f->bits;
    const struct {
        const char *name;
        binary *f, *scalar;
    } binaries[] = {{"v_add", f->add, scalar->add},
                    {"v_sub", f->sub, scalar->sub},
                    {"v_mul", f->mul, scalar->mul},
                    {"v_div", f->div, scalar->div},
                    {"v_max", f->max, scalar->max}};

    draw_operands(bits, &x, &y, &z);
    for (ptrdiff_t k = 0; k < COUNT(binaries); k++) {
        binaries[k].f(&x, &y, &got, PIECE);
        binaries[k].scalar(&x, &y, &want, PIECE);
        expect(same_values(&got, &want, bits), "%s of %s, %d bits", binaries[k].name,
               f->tier, bits);
    }
    f->fma(&x, &y, &z, &got, PIECE);
    scalar->fma(&x, &y, &z, &want, PIECE);
    expect(same_values(&got, &want, bits), "v_fma of %s, %d bits", f->tier, bits);
    f->fms(&x, &y, &z, &got, PIECE);
    scalar->fms(&x, &y, &z, &want, PIECE);
    expect(same_values(&got, &want, bits), "v_fms of %s, %d bits", f->tier, bits);
    f->quiet_nan_or(&x, &got, PIECE);
    scalar->quiet_nan_or(&x, &want, PIECE);
    expect(memcmp(&got, &want, PIECE * (size_t)bits / 8) == 0,
           "quiet_nan_or of %s, %d bits", f->tier, bits);
}

/* Halves, and numbers just beside them. */
static void
expect_same_rounding(const functions *f, const functions *scalar)
{
    static reals x, n, got, want;
    const int bits = f->bits;
    const int lowest = bits == 32 ? -126 : -1022;
    uint64_t state = 32;

    for (ptrdiff_t i = 0; i < PIECE; i++) {
        double half = (double)(i / 3 - PIECE / 6) / 2;
        double beside = half + (double)(i % 3 - 1);
        if (bits == 32) {
            x.f32[i] = nextafterf((float)half, (float)beside);
        } else {
            x.f64[i] = nextafter(half, beside);
        }
    }
    f->round(&x, &got, PIECE);
    scalar->round(&x, &want, PIECE);
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        long double right = nearbyintl(real_at(&x, bits, i));
        expect(real_at(&want, bits, i) == right && real_at(&got, bits, i) == right,
               "v_round of %s, %d bits, of %Lg", f->tier, bits, real_at(&x, bits, i));
    }
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        double a = 1.25 + 0.75 * random_unit(&state);
        double exponent = (double)(lowest + i % (2 - 2 * lowest));
        if (bits == 32) {
            x.f32[i] = (float)a, n.f32[i] = (float)exponent;
        } else {
            x.f64[i] = a, n.f64[i] = exponent;
        }
    }
    f->scale2(&x, &n, &got, PIECE);
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        long double a = real_at(&x, bits, i);
        int exponent = (int)real_at(&n, bits, i);
        long double right = ldexpl(a, exponent);
        expect(real_at(&got, bits, i) == (bits == 32 ? (float)right : (double)right),
               "v_scale2 of %s, %d bits, of %Lg, %d", f->tier, bits, a, exponent);
    }
}

/* Of numbers with every exponent, and of the powers of two just below and above. */
static void
expect_exponents(const functions *f)
{
    static reals x, got;
    const int bits = f->bits, lowest = bits == 32 ? -126 : -1022;
    uint64_t state = 33;

    for (ptrdiff_t i = 0; i < PIECE; i++) {
        double fraction = i % 3 == 0   ? 1
                          : i % 3 == 1 ? (bits == 32 ? 2 - 0x1p-23 : 2 - 0x1p-52)
                                       : 1.5 + 0.25 * random_unit(&state);
        double a = ldexp(fraction, lowest + (int)(i / 3 % (2 - 2 * lowest)));
        if (bits == 32) {
            x.f32[i] = (float)a;
        } else {
            x.f64[i] = a;
        }
    }
    f->exponent(&x, &got, PIECE);
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        int exponent;
        frexpl(real_at(&x, bits, i), &exponent);
        expect(real_at(&got, bits, i) == exponent - 1,
               "v_exponent of %s, %d bits, of %Lg", f->tier, bits,
               real_at(&x, bits, i));
    }
}

void
test_vocabulary_is_the_scalar_one(void)
{
    const functions *f;

    for (int bits = 32; bits <= 64; bits += 32) {
        for (int t = 0; (f = functions_at(bits, t)) != NULL; t++) {
            expect_same_arithmetic(f, functions_at(bits, 0));
            expect_same_rounding(f, functions_at(bits, 0));
            expect_exponents(f);
        }
    }
}

static void
expect_transposes(const functions *f, int bits, void (*transpose)(void *),
                  const char *name)
{
    static reals square;
    int n = f->lanes, n_wrong = 0;

    for (int i = 0; i < n * n; i++) {
        set_bits(&square, bits, i, (uint64_t)i);
    }
    transpose(&square);
    for (int i = 0; i < n * n; i++) {
        n_wrong += get_bits(&square, bits, i) != (uint64_t)(i % n * n + i / n);
    }
    expect(n_wrong == 0, "%s of %s, %d bits", name, f->tier, bits);
}

void
test_vectors_are_transposed(void)
{
    const functions *f;

    for (int bits = 32; bits <= 64; bits += 32) {
        for (int t = 0; (f = functions_at(bits, t)) != NULL; t++) {
            expect_transposes(f, bits, f->transpose, "v_transpose");
            if (f->load_columns != NULL) {
                expect_transposes(f, bits, f->load_columns, "v_load_columns");
            }
        }
    }
}

/* All numbers, a square of them at a time. */
void
test_columns_of_bfloat16_are_transposed(void)
{
    static uint16_t square[PIECE];
    static reals got;
    const functions *f;
    int n_tested = 0;

    for (int t = 0; (f = functions_at(32, t)) != NULL; t++) {
        int n = f->lanes, n_wrong = 0;
        for (int first = 0; f->load_bf16_columns != NULL && first < 0x10000;
             first += n * n) {
            for (int i = 0; i < n * n; i++) {
                square[i] = (uint16_t)(first + i);
            }
            f->load_bf16_columns(square, &got);
            for (int i = 0; i < n * n; i++) {
                uint32_t want = (uint32_t)square[i % n * n + i / n] << 16;
                n_wrong += got.u32[i] != want;
            }
            n_tested++;
        }
        expect(n_wrong == 0, "v_load_bf16_columns of %s", f->tier);
    }
    expect(n_tested > 0 || attn_tier_named("avx2") == NULL, "no tier has it");
}

/* All numbers, a vector of pairs at a time. */
void
test_pairs_of_bfloat16_are_split(void)
{
    static uint16_t pairs[PIECE];
    static reals got;
    const functions *f;
    int n_tested = 0;

    for (int t = 0; (f = functions_at(32, t)) != NULL; t++) {
        int n = 2 * f->lanes, n_wrong = 0;
        for (int first = 0; f->load_bf16_pairs != NULL && first < 0x10000; first += n) {
            for (int i = 0; i < n; i++) {
                pairs[i] = (uint16_t)(first + i);
            }
            f->load_bf16_pairs(pairs, &got);
            for (int i = 0; i < n; i++) {
                uint32_t want = (uint32_t)pairs[i] << 16;
                n_wrong += got.u32[i % 2 * f->lanes + i / 2] != want;
            }
            n_tested++;
        }
        expect(n_wrong == 0, "v_load_bf16_pairs of %s", f->tier);
    }
    expect(n_tested > 0 || attn_tier_named("avx2") == NULL, "no tier has it");
}

/* Lane i is the reals' element i. */
static void
expect_masks(const functions *f, uint64_t mask)
{
    static reals yes, no, got;
    const uint64_t lanes = (UINT64_C(1) << f->lanes) - 1;
    reals *x = &no;

    expect(f->mask(mask) == (mask & lanes), "v_mask_of of %s, %d bits, of %#llx",
           f->tier, f->bits, (unsigned long long)mask);
    for (int i = 0; i < f->lanes; i++) {
        set_bits(&yes, f->bits, i, 100 + (uint64_t)i);
        set_bits(&no, f->bits, i, (uint64_t)i);
    }
    f->select(mask, &yes, &no, &got);
    for (int i = 0; i < f->lanes; i++) {
        bool chosen = mask >> i & 1;
        expect(get_bits(&got, f->bits, i) == (chosen ? 100u : 0u) + (uint64_t)i,
               "v_select of %s, %d bits, of %#llx", f->tier, f->bits,
               (unsigned long long)mask);
    }
    for (int i = 0; i < f->lanes; i++) { /* 0, or NaN */
        uint64_t nan = f->bits == 32 ? 0x7fc00000 : UINT64_C(0x7ff8000000000000);
        set_bits(x, f->bits, i, mask >> i & 1 ? nan : 0);
    }
    expect(f->is_nan(x) == (mask & lanes), "v_is_nan of %s, %d bits", f->tier, f->bits);
}

/* Against comparisons in C, on random vectors with NaN among them. */
static void
expect_comparisons(const functions *f, uint64_t *state)
{
    static reals x, y, top;
    uint64_t less = 0;
    long double max = -HUGE_VALL;

    for (int i = 0; i < f->lanes; i++) {
        double a = specials[random_below(state, COUNT(specials))];
        double b = specials[random_below(state, COUNT(specials))];
        if (f->bits == 32) {
            x.f32[i] = (float)a, y.f32[i] = (float)b;
        } else {
            x.f64[i] = a, y.f64[i] = b;
        }
        less |= (uint64_t)(real_at(&x, f->bits, i) < real_at(&y, f->bits, i)) << i;
    }
    expect(f->less(&x, &y) == less, "v_less of %s, %d bits", f->tier, f->bits);
    for (int i = 0; i < f->lanes; i++) { /* the maximum is of numbers only */
        if (isnan(real_at(&x, f->bits, i))) {
            set_bits(&x, f->bits, i, 0);
        }
        max = fmaxl(max, real_at(&x, f->bits, i));
    }
    f->reduce_max(&x, &top);
    expect(real_at(&top, f->bits, 0) == max, "v_reduce_max of %s, %d bits", f->tier,
           f->bits);
}

/* Sums of integers are exact, whatever the order of lanes. */
static void
expect_sum(const functions *f, uint64_t *state)
{
    static reals x, sum;
    int64_t expected = 0;

    for (int i = 0; i < f->lanes; i++) {
        int64_t one = (int64_t)random_below(state, 40001) - 20000;
        x.f32[i] = (float)one;
        expected += one;
    }
    f->reduce_add(&x, &sum);
    expect(sum.f32[0] == (float)expected, "v_reduce_add of %s", f->tier);
}

void
test_masks_are_bits(void)
{
    const functions *f;
    uint64_t state = 33;

    for (int bits = 32; bits <= 64; bits += 32) {
        for (int t = 0; (f = functions_at(bits, t)) != NULL; t++) {
            for (uint64_t mask = 0; mask < UINT64_C(1) << f->lanes; mask++) {
                expect_masks(f, mask | random_bits(&state) << f->lanes);
            }
            for (int n = 0; n < 2000; n++) {
                expect_comparisons(f, &state);
                if (bits == 32) {
                    expect_sum(f, &state);
                }
            }
        }
    }
}
