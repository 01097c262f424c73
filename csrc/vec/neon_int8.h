/* The vocabulary of integer products with NEON: products have 16 bits, and neighbours are
 * added to sums of 32. What each function must do is written in vec/scalar_int8.h. */
#include "vec/neon_codes.h"

typedef struct {
    int32x4_t low, high; /* two sums for each of 4 columns */
} v_dots;

static inline v_dots v_begin_dots(int32_t begin)
{
    int32x4_t one_of_two = vreinterpretq_s32_u64(vdupq_n_u64((uint32_t)begin));
    return (v_dots){one_of_two, one_of_two};
}

static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
    int16x8_t high = vmull_high_s8(w, x);
    return (v_dots){vpadalq_s16(sum.low, low), vpadalq_s16(sum.high, high)};
}

static inline v_real v_float_dots(v_dots sum)
{
    return vcvtq_f32_s32(vpaddq_s32(sum.low, sum.high));
}
