/* The vector vocabulary: float, 4 lanes, NEON of AArch64. What each function must do is
 * written in vec/scalar_f32.h. */
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef float real;
typedef float32x4_t v_real;
typedef uint32x4_t v_mask; /* a lane's bits are all 1 or all 0 */

enum { LANES = 4 };

static inline v_real v_load(const real *p) { return vld1q_f32(p); }
static inline void v_store(real *p, v_real a) { vst1q_f32(p, a); }
static inline v_real v_set1(real x) { return vdupq_n_f32(x); }

static inline v_real v_add(v_real a, v_real b) { return vaddq_f32(a, b); }
static inline v_real v_sub(v_real a, v_real b) { return vsubq_f32(a, b); }
static inline v_real v_mul(v_real a, v_real b) { return vmulq_f32(a, b); }
static inline v_real v_div(v_real a, v_real b) { return vdivq_f32(a, b); }

/* Not vmaxq_f32, which gives NaN where either is NaN. */
static inline v_real v_max(v_real a, v_real b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

static inline v_real v_fma(v_real a, v_real b, v_real c) { return vfmaq_f32(c, a, b); }

static inline v_real v_fms(v_real a, v_real b, v_real c)
{
    return vfmaq_f32(vnegq_f32(c), a, b);
}

static inline v_real v_round(v_real a) { return vrndnq_f32(a); }

static inline v_real v_scale2(v_real a, v_real n)
{
    int32x4_t biased = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(biased, 23)));
}
static inline v_real v_scale2_unless(v_mask zero, v_real a, v_real n)
{
    return vbslq_f32(zero, vdupq_n_f32(0), v_scale2(a, n));
}

static inline v_real v_exponent(v_real a)
{
    uint32x4_t biased = vshrq_n_u32(vreinterpretq_u32_f32(a), 23);
    return vsubq_f32(vcvtq_f32_u32(biased), vdupq_n_f32(127));
}

static inline v_mask v_less(v_real a, v_real b) { return vcltq_f32(a, b); }
static inline v_mask v_is_nan(v_real a) { return vmvnq_u32(vceqq_f32(a, a)); }

static inline v_mask v_mask_of(uint64_t bits)
{
    const uint32x4_t lane = {1, 2, 4, 8};
    return vtstq_u32(vdupq_n_u32((uint32_t)bits), lane);
}

static inline uint64_t v_bits_of(v_mask mask)
{
    const uint32x4_t lane = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(mask, lane));
}

static inline v_real v_select(v_mask mask, v_real yes, v_real no)
{
    return vbslq_f32(mask, yes, no);
}

static inline real v_reduce_max(v_real a) { return vmaxvq_f32(a); }
static inline real v_reduce_add(v_real a) { return vaddvq_f32(a); }

static inline v_real v_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

static inline v_real v_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

static inline void v_store_f16(uint16_t *p, v_real a)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}

static inline void v_store_bf16(uint16_t *p, v_real a)
{
    uint32x4_t bits = vreinterpretq_u32_f32(a);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounding = vaddq_u32(odd, vdupq_n_u32(0x7fff));
    uint32x4_t rounded = vaddq_u32(bits, rounding);
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
    bits = vbslq_u32(v_is_nan(a), quiet, rounded);
    vst1_u16(p, vshrn_n_u32(bits, 16));
}

static inline void v_store_code_pairs(void *p, v_real low, v_real high)
{
    int32x4_t first = vcvtnq_s32_f32(low), second = vcvtnq_s32_f32(high);
    vst1q_s8((int8_t *)p, vreinterpretq_s8_s32(vsliq_n_s32(first, second, 16)));
}

static inline v_real v_load_i8(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}

static inline v_real v_byte(v_real a, int k)
{
    int32x4_t x = vreinterpretq_s32_f32(a);
    x = k == 0   ? vshlq_n_s32(x, 24)
        : k == 1 ? vshlq_n_s32(x, 16)
        : k == 2 ? vshlq_n_s32(x, 8)
                 : x;
    return vcvtq_f32_s32(vshrq_n_s32(x, 24));
}

/* Two rounds: neighbours' 32-bit lanes, then 64-bit halves. */
static INLINE void v_transpose(v_real a[LANES])
{
    float64x2_t t0 = vreinterpretq_f64_f32(vtrn1q_f32(a[0], a[1]));
    float64x2_t t1 = vreinterpretq_f64_f32(vtrn2q_f32(a[0], a[1]));
    float64x2_t t2 = vreinterpretq_f64_f32(vtrn1q_f32(a[2], a[3]));
    float64x2_t t3 = vreinterpretq_f64_f32(vtrn2q_f32(a[2], a[3]));

    a[0] = vreinterpretq_f32_f64(vtrn1q_f64(t0, t2));
    a[1] = vreinterpretq_f32_f64(vtrn1q_f64(t1, t3));
    a[2] = vreinterpretq_f32_f64(vtrn2q_f64(t0, t2));
    a[3] = vreinterpretq_f32_f64(vtrn2q_f64(t1, t3));
}
