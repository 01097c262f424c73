/* The vector vocabulary: float, one lane, plain C. This is the definition: every other
 * header here gives, lane by lane, the same bits. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/half.h"

typedef float real;
typedef float v_real; /* LANES reals */
typedef bool v_mask;  /* a truth value for each lane */

enum { LANES = 1 };

static inline v_real v_load(const real *p) { return *p; }
static inline void v_store(real *p, v_real a) { *p = a; }
static inline v_real v_set1(real x) { return x; }

static inline v_real v_add(v_real a, v_real b) { return a + b; }
static inline v_real v_sub(v_real a, v_real b) { return a - b; }
static inline v_real v_mul(v_real a, v_real b) { return a * b; }
static inline v_real v_div(v_real a, v_real b) { return a / b; }

/* b where either is NaN */
static inline v_real v_max(v_real a, v_real b) { return a > b ? a : b; }

/* a * b + c and a * b - c, rounded once */
static inline v_real v_fma(v_real a, v_real b, v_real c) { return fmaf(a, b, c); }
static inline v_real v_fms(v_real a, v_real b, v_real c) { return fmaf(a, b, -c); }

/* To the nearest integer, ties to even, for |a| < 2^22; else anything. */
static inline v_real v_round(v_real a) { return (a + 0x1.8p23f) - 0x1.8p23f; }

/* a * 2^n for an integer n in [-126, 127] and a in [1/2, 2], else anything; NaN if a is */
static inline v_real v_scale2(v_real a, v_real n)
{
    uint32_t biased = attn_bits_from_float(n + 0x1.8p23f) + 127;
    return a * attn_float_from_bits(biased << 23);
}

/* The same, but 0 where v_less gave `zero`, whatever a and n are: there no subnormal number is
 * computed, which takes many CPUs a hundred cycles. */
static inline v_real v_scale2_unless(v_mask zero, v_real a, v_real n)
{
    return zero ? 0 : v_scale2(a, n);
}

/* n where a = f * 2^n with 1 <= f < 2, for a normal number a > 0; else anything */
static inline v_real v_exponent(v_real a)
{
    return (real)((int32_t)(attn_bits_from_float(a) >> 23) - 127);
}

static inline v_mask v_less(v_real a, v_real b) { return a < b; }
static inline v_mask v_is_nan(v_real a) { return a != a; }

/* Lane i is bit i; higher bits are ignored, and come out 0. */
static inline v_mask v_mask_of(uint64_t bits) { return bits & 1; }
static inline uint64_t v_bits_of(v_mask mask) { return mask; }

static inline v_real v_select(v_mask mask, v_real yes, v_real no)
{
    return mask ? yes : no;
}

/* The largest lane; none is NaN. */
static inline real v_reduce_max(v_real a) { return a; }

/* The sum of all lanes, in any order: of integers, which floats hold exactly. */
static inline real v_reduce_add(v_real a) { return a; }

/* LANES values of a 16-bit type, as half.h converts them */
static inline v_real v_load_f16(const uint16_t *p) { return attn_from_f16(*p); }
static inline v_real v_load_bf16(const uint16_t *p) { return attn_from_bf16(*p); }
static inline void v_store_f16(uint16_t *p, v_real a) { *p = attn_to_f16(a); }
static inline void v_store_bf16(uint16_t *p, v_real a) { *p = attn_to_bf16(a); }

static inline int16_t round_code(v_real a) { return a != a ? 0 : (int16_t)v_round(a); }

/* Two vectors as pairs of integers of 16 bits, ties to even: lane i is low[i], high[i]; 0 for NaN. */
static inline void v_store_code_pairs(void *p, v_real low, v_real high)
{
    int16_t pair[2] = {round_code(low), round_code(high)};
    memcpy(p, pair, sizeof pair);
}

/* LANES bytes */
static inline v_real v_load_i8(const int8_t *p) { return *p; }

/* The k-th of the four bytes in each lane, as a number. */
static inline v_real v_byte(v_real a, int k)
{
    int8_t bytes[4];
    memcpy(bytes, &a, sizeof a);
    return bytes[k];
}

/* Lane j of a[i] changes places with lane i of a[j]. */
static inline void v_transpose(v_real a[LANES]) { (void)a; }
