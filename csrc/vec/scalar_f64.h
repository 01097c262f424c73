/* The vector vocabulary: double, one lane, plain C; contracts as in vec/scalar_f32.h. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/half.h"

typedef double real;
typedef double v_real;
typedef bool v_mask;

enum { LANES = 1 };

static inline v_real v_load(const real *p) { return *p; }
static inline void v_store(real *p, v_real a) { *p = a; }
static inline v_real v_set1(real x) { return x; }

static inline v_real v_add(v_real a, v_real b) { return a + b; }
static inline v_real v_sub(v_real a, v_real b) { return a - b; }
static inline v_real v_mul(v_real a, v_real b) { return a * b; }
static inline v_real v_div(v_real a, v_real b) { return a / b; }
static inline v_real v_max(v_real a, v_real b) { return a > b ? a : b; }
static inline v_real v_fma(v_real a, v_real b, v_real c) { return fma(a, b, c); }
static inline v_real v_fms(v_real a, v_real b, v_real c) { return fma(a, b, -c); }

/* For |a| < 2^51 */
static inline v_real v_round(v_real a) { return (a + 0x1.8p52) - 0x1.8p52; }

/* For n in [-1022, 1023] */
static inline v_real v_scale2(v_real a, v_real n)
{
    double shifted = n + 0x1.8p52;
    uint64_t biased;
    double power;

    memcpy(&biased, &shifted, sizeof biased);
    biased = (biased + 1023) << 52;
    memcpy(&power, &biased, sizeof power);
    return a * power;
}

static inline v_real v_scale2_unless(v_mask zero, v_real a, v_real n)
{
    return zero ? 0 : v_scale2(a, n);
}

static inline v_real v_exponent(v_real a)
{
    uint64_t bits;

    memcpy(&bits, &a, sizeof bits);
    return (real)((int64_t)(bits >> 52) - 1023);
}

static inline v_mask v_less(v_real a, v_real b) { return a < b; }
static inline v_mask v_is_nan(v_real a) { return a != a; }
static inline v_mask v_mask_of(uint64_t bits) { return bits & 1; }
static inline uint64_t v_bits_of(v_mask mask) { return mask; }

static inline v_real v_select(v_mask mask, v_real yes, v_real no)
{
    return mask ? yes : no;
}

static inline real v_reduce_max(v_real a) { return a; }

static inline v_real v_load_f16(const uint16_t *p) { return attn_from_f16(*p); }
static inline v_real v_load_bf16(const uint16_t *p) { return attn_from_bf16(*p); }
static inline v_real v_load_i8(const int8_t *p) { return *p; }

static inline void v_transpose(v_real a[LANES]) { (void)a; }
