/* The vocabulary of integer products with the dot products of NEON, FEAT_DotProd. What each
 * function must do is written in vec/scalar_int8.h. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef int8_t term;
typedef int32x4_t v_dots;
typedef int8x16_t v_quads;
typedef int8x16_t v_four;

enum { DOTS = 1 };

static inline v_dots v_begin_dots(int32_t total)
{
    (void)total;
    return vdupq_n_s32(0);
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
    return vdotq_s32(sum, w, x);
}

static inline v_real v_float_dots(const v_dots sums[DOTS])
{
    return vcvtq_f32_s32(sums[0]);
}

static inline v_real v_float_codes(const int8_t *p, int t)
{
    int32x4_t quads = vreinterpretq_s32_s8(vld1q_s8(p));
    int32x4_t top = vshlq_s32(quads, vdupq_n_s32(24 - 8 * t));
    return vcvtq_f32_s32(vshrq_n_s32(top, 24));
}
