/* The vocabulary of integer products with the dot products of NEON, FEAT_DotProd. What each
 * function must do is written in vec/scalar_int8.h. */
#include "vec/neon_codes.h"

typedef int32x4_t v_dots;

static inline v_dots v_begin_dots(int32_t begin) { return vdupq_n_s32(begin); }

static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    return vdotq_s32(sum, w, x);
}

static inline v_real v_float_dots(v_dots sum) { return vcvtq_f32_s32(sum); }
