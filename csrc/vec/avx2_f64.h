/* The vector vocabulary: double, 4 lanes, AVX2 with FMA and F16C. What each function must
 * do is written in vec/scalar_f32.h. */
#include <immintrin.h>
#include <stdint.h>

typedef double real;
typedef __m256d v_real;
typedef __m256d v_mask; /* a lane's sign bit counts */

enum { LANES = 4 };

static inline v_real v_load(const real *p) { return _mm256_loadu_pd(p); }
static inline void v_store(real *p, v_real a) { _mm256_storeu_pd(p, a); }
static inline v_real v_set1(real x) { return _mm256_set1_pd(x); }

static inline v_real v_add(v_real a, v_real b) { return _mm256_add_pd(a, b); }
static inline v_real v_sub(v_real a, v_real b) { return _mm256_sub_pd(a, b); }
static inline v_real v_mul(v_real a, v_real b) { return _mm256_mul_pd(a, b); }
static inline v_real v_div(v_real a, v_real b) { return _mm256_div_pd(a, b); }
static inline v_real v_max(v_real a, v_real b) { return _mm256_max_pd(a, b); }

static inline v_real v_fma(v_real a, v_real b, v_real c)
{
    return _mm256_fmadd_pd(a, b, c);
}

static inline v_real v_fms(v_real a, v_real b, v_real c)
{
    return _mm256_fmsub_pd(a, b, c);
}

static INLINE void v_outlive(v_real a) { __asm__ volatile("" : : "x"(a)); }
static inline v_real v_round(v_real a)
{
    return _mm256_round_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline v_real v_scale2(v_real a, v_real n)
{
    __m256d shifted = _mm256_add_pd(n, _mm256_set1_pd(0x1.8p52));
    __m256i biased = _mm256_castpd_si256(shifted);
    biased = _mm256_add_epi64(biased, _mm256_set1_epi64x(1023));
    return _mm256_mul_pd(a, _mm256_castsi256_pd(_mm256_slli_epi64(biased, 52)));
}
static inline v_real v_scale2_unless(v_mask zero, v_real a, v_real n)
{
    v_real power = _mm256_andnot_pd(zero, v_scale2(v_set1(1), n));
    return _mm256_andnot_pd(zero, _mm256_mul_pd(a, power));
}

/* The biased exponent as the last bits of a number from 2^52 on. */
static inline v_real v_exponent(v_real a)
{
    __m256i biased = _mm256_srli_epi64(_mm256_castpd_si256(a), 52);
    __m256i large = _mm256_or_si256(biased, _mm256_set1_epi64x(0x4330000000000000));
    return _mm256_sub_pd(_mm256_castsi256_pd(large), _mm256_set1_pd(0x1p52 + 1023));
}

static inline v_mask v_less(v_real a, v_real b)
{
    return _mm256_cmp_pd(a, b, _CMP_LT_OQ);
}
static inline v_mask v_is_nan(v_real a) { return _mm256_cmp_pd(a, a, _CMP_UNORD_Q); }

static inline v_mask v_mask_of(uint64_t bits)
{
    const __m256i lane = _mm256_setr_epi64x(1, 2, 4, 8);
    __m256i all = _mm256_set1_epi64x((long long)(bits & 0xf));
    return _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_and_si256(all, lane), lane));
}

static inline uint64_t v_bits_of(v_mask mask)
{
    return (uint64_t)(unsigned)_mm256_movemask_pd(mask);
}

static inline v_real v_select(v_mask mask, v_real yes, v_real no)
{
    return _mm256_blendv_pd(no, yes, mask);
}

static inline real v_reduce_max(v_real a)
{
    __m128d m = _mm_max_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_max_sd(m, _mm_unpackhi_pd(m, m)));
}

static inline v_real v_load_f16(const uint16_t *p)
{
    return _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p)));
}

static inline v_real v_load_i8(const int8_t *p)
{
    __m128i bytes = _mm_loadu_si32(p);
    return _mm256_cvtepi32_pd(_mm_cvtepi8_epi32(bytes));
}

static inline v_real v_load_bf16(const uint16_t *p)
{
    __m128i wide = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(wide, 16)));
}

/* Two rounds: neighbours' 64-bit halves, then 128-bit halves. */
static INLINE void v_transpose(v_real a[LANES])
{
    v_real t0 = _mm256_unpacklo_pd(a[0], a[1]);
    v_real t1 = _mm256_unpackhi_pd(a[0], a[1]);
    v_real t2 = _mm256_unpacklo_pd(a[2], a[3]);
    v_real t3 = _mm256_unpackhi_pd(a[2], a[3]);

    a[0] = _mm256_permute2f128_pd(t0, t2, 0x20);
    a[1] = _mm256_permute2f128_pd(t1, t3, 0x20);
    a[2] = _mm256_permute2f128_pd(t0, t2, 0x31);
    a[3] = _mm256_permute2f128_pd(t1, t3, 0x31);
}
