/* The vector vocabulary: double, 2 lanes, NEON of AArch64. What each function must do is
 * written in vec/scalar_f32.h. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef double real;
typedef float64x2_t v_real;
typedef uint64x2_t v_mask; /* a lane's bits are all 1 or all 0 */

enum { LANES = 2 };

static inline v_real v_load(const real *p) { return vld1q_f64(p); }
static inline void v_store(real *p, v_real a) { vst1q_f64(p, a); }
static inline v_real v_set1(real x) { return vdupq_n_f64(x); }

static inline v_real v_add(v_real a, v_real b) { return vaddq_f64(a, b); }
static inline v_real v_sub(v_real a, v_real b) { return vsubq_f64(a, b); }
static inline v_real v_mul(v_real a, v_real b) { return vmulq_f64(a, b); }
static inline v_real v_div(v_real a, v_real b) { return vdivq_f64(a, b); }

/* Not vmaxq_f64, which gives NaN where either is NaN. */
static inline v_real v_max(v_real a, v_real b)
{
    return vbslq_f64(vcgtq_f64(a, b), a, b);
}

static inline v_real v_fma(v_real a, v_real b, v_real c) { return vfmaq_f64(c, a, b); }

static inline v_real v_fms(v_real a, v_real b, v_real c)
{
    return vfmaq_f64(vnegq_f64(c), a, b);
}

static inline v_real v_round(v_real a) { return vrndnq_f64(a); }

static inline v_real v_scale2(v_real a, v_real n)
{
    int64x2_t biased = vaddq_s64(vcvtq_s64_f64(n), vdupq_n_s64(1023));
    return vmulq_f64(a, vreinterpretq_f64_s64(vshlq_n_s64(biased, 52)));
}
static inline v_real v_scale2_unless(v_mask zero, v_real a, v_real n)
{
    return vbslq_f64(zero, vdupq_n_f64(0), v_scale2(a, n));
}

static inline v_real v_exponent(v_real a)
{
    uint64x2_t biased = vshrq_n_u64(vreinterpretq_u64_f64(a), 52);
    return vsubq_f64(vcvtq_f64_u64(biased), vdupq_n_f64(1023));
}

static inline v_mask v_less(v_real a, v_real b) { return vcltq_f64(a, b); }

static inline v_mask v_is_nan(v_real a)
{
    return veorq_u64(vceqq_f64(a, a), vdupq_n_u64(UINT64_MAX));
}

static inline v_mask v_mask_of(uint64_t bits)
{
    const uint64x2_t lane = {1, 2};
    return vtstq_u64(vdupq_n_u64(bits), lane);
}

static inline uint64_t v_bits_of(v_mask mask)
{
    const uint64x2_t lane = {1, 2};
    return vaddvq_u64(vandq_u64(mask, lane));
}

static inline v_real v_select(v_mask mask, v_real yes, v_real no)
{
    return vbslq_f64(mask, yes, no);
}

static inline real v_reduce_max(v_real a) { return vmaxvq_f64(a); }

/* Two 16-bit values in the lower lanes, the others 0. */
static inline uint16x4_t load_halves(const uint16_t *p)
{
    uint32_t both;
    memcpy(&both, p, sizeof both);
    return vreinterpret_u16_u32(vset_lane_u32(both, vdup_n_u32(0), 0));
}

static inline v_real v_load_f16(const uint16_t *p)
{
    float32x4_t wide = vcvt_f32_f16(vreinterpret_f16_u16(load_halves(p)));
    return vcvt_f64_f32(vget_low_f32(wide));
}

static inline v_real v_load_i8(const int8_t *p)
{
    const double both[2] = {p[0], p[1]};
    return vld1q_f64(both);
}

static inline v_real v_load_bf16(const uint16_t *p)
{
    uint32x4_t wide = vshll_n_u16(load_halves(p), 16);
    return vcvt_f64_f32(vget_low_f32(vreinterpretq_f32_u32(wide)));
}

static INLINE void v_transpose(v_real a[LANES])
{
    v_real t = vtrn1q_f64(a[0], a[1]);

    a[1] = vtrn2q_f64(a[0], a[1]);
    a[0] = t;
}
