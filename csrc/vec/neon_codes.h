/* Codes of quantised matrices, for both vocabularies of integer products with NEON. What each
 * function must do is written in vec/scalar_int8.h. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef int8_t term;
typedef int8_t code;
typedef int8x16_t v_codes;
typedef int8x16_t v_quads;
typedef int8x16_t v_four;
typedef int8x16_t v_table;

enum { OFFSET = 0 };

static inline v_codes v_load_codes(const char *p)
{
    return vld1q_s8((const int8_t *)p);
}

static inline bool v_keep_loads(void) { return false; }

static inline v_codes v_narrow_codes(v_codes codes, v_codes above, const int i,
                                     const int n)
{
    uint8x16_t bits = vreinterpretq_u8_s8(codes);

    bits = i % 2 == 0 ? vandq_u8(bits, vdupq_n_u8(15)) : vshrq_n_u8(bits, 4);
    if (n > 0) {
        uint8x16_t high =
            vshlq_u8(vreinterpretq_u8_s8(above), vdupq_n_s8((int8_t)(4 - n * i)));
        high = vandq_u8(high, vdupq_n_u8((uint8_t)(((1 << n) - 1) << 4)));
        bits = vorrq_u8(bits, high);
    }
    return vreinterpretq_s8_u8(bits);
}

static inline v_quads v_quads_of(v_codes codes, const bool wide)
{
    (void)wide;
    return codes;
}

static inline v_table v_load_table(const int8_t *p) { return vld1q_s8(p); }

static inline v_quads v_look_up(v_table table, v_codes codes)
{
    return vqtbl1q_s8(table, vreinterpretq_u8_s8(codes));
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

static inline v_real v_max_size(v_real a, v_real b) { return v_max(vabsq_f32(a), b); }

static inline v_real v_load_powers(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
    uint32x4_t twice = vshlq_n_u32(vmovl_u16(vget_low_u16(wide)), 23);
    twice = vmaxq_u32(twice, vdupq_n_u32(1 << 22));
    return v_mul(vreinterpretq_f32_u32(twice), v_set1(0.5f));
}

static inline v_four v_load_four(const term *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
