/* The vocabulary of integer products with NEON: products have 16 bits, and neighbours are
 * added to sums of 32. What each function must do is written in vec/scalar_int8.h. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef int8_t term;
typedef int8_t code;
typedef struct {
    int32x4_t low, high; /* two sums for each of 4 columns */
} v_dots;
typedef int8x16_t v_quads;
typedef int8x16_t v_four;
typedef int8x16_t v_bytes;

enum { DOTS = 1, OFFSET = 0 };

static inline v_dots v_begin_dots(int32_t begin)
{
    (void)begin; /* which is 0 */
    return (v_dots){vdupq_n_s32(0), vdupq_n_s32(0)};
}

static inline v_bytes v_load_bytes(const char *p)
{
    return vld1q_s8((const int8_t *)p);
}

static inline v_bytes v_narrow_bytes(const char *p, const char *above, const int i,
                                     const int n, int zero)
{
    uint8x16_t codes = vld1q_u8((const uint8_t *)p);

    codes = i % 2 == 0 ? vandq_u8(codes, vdupq_n_u8(15)) : vshrq_n_u8(codes, 4);
    if (n > 0) {
        uint8x16_t high = vld1q_u8((const uint8_t *)above);
        high = vshlq_u8(high, vdupq_n_s8((int8_t)(4 - n * i)));
        high = vandq_u8(high, vdupq_n_u8((uint8_t)(((1 << n) - 1) << 4)));
        codes = vorrq_u8(codes, high);
    }
    return vsubq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8((int8_t)zero));
}

static inline v_quads v_load_quads(const char *p) { return v_load_bytes(p); }
static inline v_quads v_narrow_quads(const char *p, const char *above, const int i,
                                     const int n, int zero)
{
    return v_narrow_bytes(p, above, i, n, zero);
}

static inline void v_store_ready(code *p, v_quads quads) { vst1q_s8(p, quads); }

static inline v_quads v_load_ready(const code *p) { return vld1q_s8(p); }

static inline void v_store_terms(term *p, v_real a)
{
    int16x4_t halves = vmovn_s32(vcvtq_s32_f32(a));
    int8x8_t bytes = vmovn_s16(vcombine_s16(halves, halves));
    int32_t four = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
    memcpy(p, &four, sizeof four);
}

static inline v_four v_load_four(const term *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
    int16x8_t high = vmull_high_s8(w, x);
    return (v_dots){vpadalq_s16(sum.low, low), vpadalq_s16(sum.high, high)};
}

static inline v_real v_float_dots(const v_dots sums[DOTS])
{
    return vcvtq_f32_s32(vpaddq_s32(sums[0].low, sums[0].high));
}

static inline v_real v_float_codes(v_bytes quads, int t)
{
    int32x4_t top = vshlq_s32(vreinterpretq_s32_s8(quads), vdupq_n_s32(24 - 8 * t));
    return vcvtq_f32_s32(vshrq_n_s32(top, 24));
}

static inline v_real v_float_bytes(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
