/* The vocabulary of products of 16-bit integers and bytes with NEON. What each function must do
 * is written in vec/scalar_shorts.h. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef int16x8_t v_shorts;
typedef int8x8_t v_narrow;
typedef struct {
    int32x4_t low,
        high; /* of two neighbours each, sums of the lower and the upper lanes */
} v_sums;

static inline v_sums v_zero_sums(void)
{
    return (v_sums){vdupq_n_s32(0), vdupq_n_s32(0)};
}

static inline v_sums v_add_pairs(v_sums sum, v_shorts a, v_shorts b)
{
    return (v_sums){vmlal_s16(sum.low, vget_low_s16(a), vget_low_s16(b)),
                    vmlal_high_s16(sum.high, a, b)};
}

static inline v_real v_float_sums(v_sums a)
{
    return vcvtq_f32_s32(vpaddq_s32(a.low, a.high));
}

static inline void v_store_sums(float *p, v_sums a)
{
    vst1q_s8((int8_t *)(void *)p, vreinterpretq_s8_s32(vpaddq_s32(a.low, a.high)));
}

/* Every other neighbour is 0. */
static inline v_sums v_load_sums(const float *p)
{
    int32x4_t a = vreinterpretq_s32_s8(vld1q_s8((const int8_t *)(const void *)p));
    int32x4_t zero = vdupq_n_s32(0);
    return (v_sums){vzip1q_s32(a, zero), vzip2q_s32(a, zero)};
}

enum { FOLD = 4 };

/* v_float_sums adds the last neighbours. */
static inline v_sums v_fold(const v_sums a[FOLD])
{
    int32x4_t t[4];

    for (int i = 0; i < 4; i++) {
        t[i] = vaddq_s32(a[i].low, a[i].high);
    }
    return (v_sums){vpaddq_s32(t[0], t[1]), vpaddq_s32(t[2], t[3])};
}

static inline v_sums v_join(const v_sums a[LANES / FOLD]) { return a[0]; }

static inline v_shorts v_load_shorts(const void *p)
{
    return vreinterpretq_s16_s8(vld1q_s8((const int8_t *)p));
}

static inline void v_store_shorts(void *p, v_shorts a)
{
    vst1q_s8((int8_t *)p, vreinterpretq_s8_s16(a));
}

static inline v_shorts v_set1_shorts(const void *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return vreinterpretq_s16_s32(vdupq_n_s32(pair));
}

static inline v_narrow v_load_narrow(const int8_t *p) { return vld1_s8(p); }

static inline v_narrow v_load_some(const int8_t *p, ptrdiff_t n)
{
    int8_t bytes[8] = {0};
    memcpy(bytes, p, (size_t)n);
    return vld1_s8(bytes);
}

static inline v_shorts v_widen(v_narrow a) { return vmovl_s8(a); }

static inline void v_zip(v_shorts x[2], v_narrow a, v_narrow b)
{
    x[0] = vmovl_s8(vzip1_s8(a, b));
    x[1] = vmovl_s8(vzip2_s8(a, b));
}

static inline void v_zip_shorts(v_shorts x[2], v_shorts a, v_shorts b)
{
    x[0] = vzip1q_s16(a, b);
    x[1] = vzip2q_s16(a, b);
}

static inline void v_store_codes(void *p, v_real a)
{
    int16x4_t codes = vmovn_s32(vcvtnq_s32_f32(a));
    vst1_s8((int8_t *)p, vreinterpret_s8_s16(codes));
}
