/* The vocabulary of integer products with NEON: products have 16 bits, and neighbours are
 * added to sums of 32. What each function must do is written in vec/scalar_int8.h. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef int8_t term;
typedef struct {
    int32x4_t low, high; /* two sums for each of 4 columns */
} v_dots;
typedef int8x16_t v_quads;
typedef int8x16_t v_four;

enum { DOTS = 1 };

static inline v_dots v_begin_dots(int32_t total)
{
    (void)total;
    return (v_dots){vdupq_n_s32(0), vdupq_n_s32(0)};
}

static inline v_quads v_load_quads(const int8_t *p) { return vld1q_s8(p); }

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

static inline v_real v_float_codes(const int8_t *p, int t)
{
    int32x4_t quads = vreinterpretq_s32_s8(vld1q_s8(p));
    int32x4_t top = vshlq_s32(quads, vdupq_n_s32(24 - 8 * t));
    return vcvtq_f32_s32(vshrq_n_s32(top, 24));
}
