/* float16 and bfloat16: half.h against their definition, and each tier's vectors against
 * half.h. */
#include "core/half.h"
#include "support/check.h"
#include "support/functions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A 16-bit format: 1 sign bit, then exponent, then fraction bits. */
typedef struct {
    const char *name;
    int fraction_bits;
    int lowest_exponent; /* of a normal number */
    float (*from)(uint16_t);
    uint16_t (*to)(float);
} format;

static const format formats[] = {
    {"float16", 10, -14, attn_from_f16, attn_to_f16},
    {"bfloat16", 7, -126, attn_from_bf16, attn_to_bf16},
};

/* The value of all exponent bits set and fraction 0: infinity, magnitudes as integers. */
static uint16_t
infinity_of(const format *f)
{
    return (uint16_t)(0x7fff >> f->fraction_bits << f->fraction_bits);
}

/* ---- The definition ----------------------------------------------------------------- */

/* What a number's magnitude means, by the definition of IEEE 754. */
static double
magnitude_value(const format *f, uint16_t magnitude)
{
    int exponent = magnitude >> f->fraction_bits;
    int fraction = magnitude & ((1 << f->fraction_bits) - 1);

    if (exponent > 0) {
        fraction += 1 << f->fraction_bits;
        exponent -= 1;
    }
    return ldexp(fraction, exponent + f->lowest_exponent - f->fraction_bits);
}

/* The magnitude nearest to a number's, ties to even, infinity being the number after the
 * largest. */
static uint16_t
nearest_magnitude(const format *f, float x)
{
    int exponent;
    uint16_t infinity = infinity_of(f);

    if (isinf(x) || x == 0) {
        return x == 0 ? 0 : infinity;
    }
    frexp((double)x, &exponent);
    exponent -= 1; /* of a fraction in [1, 2) */
    exponent = exponent < f->lowest_exponent ? f->lowest_exponent : exponent;
    /* Steps between neighbours, of which normal numbers have 2^fraction_bits and more. */
    double steps = nearbyint(ldexp(fabs((double)x), f->fraction_bits - exponent));
    double magnitude = steps + ldexp(exponent - f->lowest_exponent, f->fraction_bits);
    return magnitude < infinity ? (uint16_t)magnitude : infinity;
}

/* Is it the format's bits for x? A NaN keeps its sign and is quiet. */
static bool
is_nearest(const format *f, float x, uint16_t half)
{
    uint16_t quiet = (uint16_t)(1 << (f->fraction_bits - 1));
    uint16_t magnitude = half & 0x7fff;

    if ((half >> 15 != 0) != (signbit(x) != 0)) {
        return false;
    }
    if (isnan(x)) {
        return magnitude > infinity_of(f) && (magnitude & quiet) != 0;
    }
    return magnitude == nearest_magnitude(f, x);
}

/* ---- Floats about rounding boundaries ------------------------------------------------ */

enum { PER_HALF = 8 };

/* From the half's own value up to the next one's: itself, the middle, and beside them. */
static void
floats_about(const format *f, uint16_t half, float to[PER_HALF])
{
    uint16_t magnitude = half & 0x7fff;
    double here = magnitude_value(f, magnitude);
    double next = magnitude_value(f, (uint16_t)(magnitude + 1));
    float middle = (float)((here + next) / 2);
    float value = (float)here;

    to[0] = value;
    to[1] = nextafterf(value, 0);
    to[2] = nextafterf(value, INFINITY);
    to[3] = middle;
    to[4] = nextafterf(middle, 0);
    to[5] = nextafterf(middle, INFINITY);
    to[6] = attn_float_from_bits(0x7f800000 + (uint32_t)magnitude * 253); /* NaN */
    to[7] = attn_float_from_bits((uint32_t)half * 65521 & 0x7fffffff);    /* any */
    for (int k = 0; k < PER_HALF && half >> 15 != 0; k++) {
        to[k] = -to[k];
    }
}

void
test_halves_are_those_of_the_definition(void)
{
    for (int n = 0; n < 2; n++) {
        const format *f = &formats[n];
        uint16_t infinity = infinity_of(f);
        for (uint32_t half = 0; half <= 0xffff; half++) {
            float about[PER_HALF];
            uint16_t magnitude = half & 0x7fff;
            float got = f->from((uint16_t)half);
            double want = magnitude_value(f, magnitude);
            bool right = magnitude > infinity    ? isnan(got)
                         : magnitude == infinity ? isinf(got)
                                                 : fabs((double)got) == want;
            expect(right && (signbit(got) != 0) == (half >> 15 != 0),
                   "%s %04x is read as %g", f->name, half, (double)got);
            floats_about(f, (uint16_t)half, about);
            for (int k = 0; k < PER_HALF; k++) {
                expect(is_nearest(f, about[k], f->to(about[k])),
                       "%s: %.9g is stored as %04x", f->name, (double)about[k],
                       f->to(about[k]));
            }
        }
    }
}

/* ---- Tiers -------------------------------------------------------------------------- */

void
test_halves_are_loaded_as_half_h_does(void)
{
    static uint16_t halves[0x10000];
    static union {
        float f32[0x10000];
        double f64[0x10000];
    } want[2], got;
    const functions *f;

    for (int i = 0; i <= 0xffff; i++) {
        halves[i] = (uint16_t)i;
    }
    for (int bits = 32; bits <= 64; bits += 32) {
        size_t size = sizeof halves / 2 * (size_t)bits / 8;
        for (int i = 0; i <= 0xffff && bits == 32; i++) {
            want[0].f32[i] = attn_from_f16(halves[i]);
            want[1].f32[i] = attn_from_bf16(halves[i]);
        }
        for (int i = 0; i <= 0xffff && bits == 64; i++) {
            want[0].f64[i] = (double)attn_from_f16(halves[i]);
            want[1].f64[i] = (double)attn_from_bf16(halves[i]);
        }
        for (int t = 0; (f = functions_at(bits, t)) != NULL; t++) {
            f->load_f16(halves, &got, 0x10000);
            expect(memcmp(&got, &want[0], size) == 0, "v_load_f16 of %s, %d bits",
                   f->tier, bits);
            f->load_bf16(halves, &got, 0x10000);
            expect(memcmp(&got, &want[1], size) == 0, "v_load_bf16 of %s, %d bits",
                   f->tier, bits);
        }
    }
}

/* Each tier stores these floats as half.h does. */
static void
expect_stored(const float floats[PIECE])
{
    static uint16_t got[PIECE], want[PIECE];
    const functions *tier;

    for (int n = 0; n < 2; n++) {
        for (ptrdiff_t i = 0; i < PIECE; i++) {
            want[i] = formats[n].to(floats[i]);
        }
        for (int t = 0; (tier = functions_at(32, t)) != NULL; t++) {
            (n == 0 ? tier->store_f16 : tier->store_bf16)(floats, got, PIECE);
            expect(memcmp(got, want, sizeof got) == 0,
                   "%s stored by %s: some from %.9g on are wrong", formats[n].name,
                   tier->tier, (double)floats[0]);
        }
    }
}

void
test_halves_are_stored_as_half_h_does(void)
{
    static float floats[PIECE];
    const uint64_t step = exhaustive ? 1 : 4001;
    const uint64_t n_patterns = UINT64_C(1) << 32;

    for (int n = 0; n < 2; n++) {
        for (uint32_t half = 0; half <= 0xffff; half += PIECE / PER_HALF) {
            for (uint32_t k = 0; k < PIECE / PER_HALF; k++) {
                floats_about(&formats[n], (uint16_t)(half + k), floats + k * PER_HALF);
            }
            expect_stored(floats);
        }
    }
    for (uint64_t first = 0; first < n_patterns; first += step * PIECE) {
        for (uint64_t i = 0; i < PIECE; i++) {
            floats[i] = attn_float_from_bits((uint32_t)(first + i * step));
        }
        expect_stored(floats);
    }
}
