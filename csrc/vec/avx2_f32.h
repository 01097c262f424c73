/* The vector vocabulary of vec/scalar_f32.h: float, 8 lanes, AVX2 with FMA and F16C. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
typedef float real;
typedef __m256 v_real;
typedef __m256 v_mask; /* a lane's sign bit counts */
enum { LANES = 8 };

static inline v_real v_load(const real *p) { return _mm256_loadu_ps(p); }
static inline void v_store(real *p, v_real a) { _mm256_storeu_ps(p, a); }
static inline v_real v_set1(real x) { return _mm256_set1_ps(x); }

static inline v_real v_add(v_real a, v_real b) { return _mm256_add_ps(a, b); }
static inline v_real v_sub(v_real a, v_real b) { return _mm256_sub_ps(a, b); }
static inline v_real v_mul(v_real a, v_real b) { return _mm256_mul_ps(a, b); }
static inline v_real v_div(v_real a, v_real b) { return _mm256_div_ps(a, b); }
static inline v_real v_max(v_real a, v_real b) { return _mm256_max_ps(a, b); }

static inline v_real v_fma(v_real a, v_real b, v_real c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline v_real v_fms(v_real a, v_real b, v_real c)
{
    return _mm256_fmsub_ps(a, b, c);
}
static INLINE void v_outlive(v_real a) { __asm__ volatile("" : : "x"(a)); }
static INLINE void v_add_product(v_real *sum, v_real a, v_real b)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
}
static inline v_real v_round(v_real a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline v_real v_scale2(v_real a, v_real n)
{
    __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
}
static inline v_real v_scale2_unless(v_mask zero, v_real a, v_real n)
{
    v_real power = _mm256_andnot_ps(zero, v_scale2(v_set1(1), n));
    return _mm256_andnot_ps(zero, _mm256_mul_ps(a, power));
}
static inline v_real v_exponent(v_real a)
{
    __m256i biased = _mm256_srli_epi32(_mm256_castps_si256(a), 23);
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(biased, _mm256_set1_epi32(127)));
}
static inline v_mask v_less(v_real a, v_real b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
static inline v_mask v_is_nan(v_real a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
static inline v_mask v_mask_of(uint64_t bits)
{
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i all = _mm256_set1_epi32((int)(bits & 0xff));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, lane), lane));
}
static inline uint64_t v_bits_of(v_mask mask)
{
    return (uint64_t)(unsigned)_mm256_movemask_ps(mask);
}
static inline v_real v_select(v_mask mask, v_real yes, v_real no)
{
    return _mm256_blendv_ps(no, yes, mask);
}
static inline real v_reduce_max(v_real a)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_shuffle_ps(m, m, 1));
    return _mm_cvtss_f32(m);
}
static inline real v_reduce_add(v_real a)
{
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_shuffle_ps(m, m, 1)));
}
static inline v_real v_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline v_real v_load_bf16(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline void v_store_f16(uint16_t *p, v_real a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
static inline void v_store_bf16(uint16_t *p, v_real a)
{
    __m256i bits = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounding = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i rounded = _mm256_add_epi32(bits, rounding);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    __m256i nan = _mm256_castps_si256(v_is_nan(a));
    bits = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    bits = _mm256_packus_epi32(bits, bits); /* into 64-bit quarters 0 and 2 */
    bits = _mm256_permute4x64_epi64(bits, 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(bits));
}
static inline void v_store_code_pairs(void *p, v_real low, v_real high)
{
    __m256i first = _mm256_cvtps_epi32(low);
    __m256i second = _mm256_slli_epi32(_mm256_cvtps_epi32(high), 16);
    _mm256_storeu_si256((__m256i *)p, _mm256_blend_epi16(first, second, 0xaa));
}
static inline v_real v_load_i8(const int8_t *p)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
static inline v_real v_byte(v_real a, int k)
{
    __m256i x = _mm256_castps_si256(a);
    x = k == 0   ? _mm256_slli_epi32(x, 24)
        : k == 1 ? _mm256_slli_epi32(x, 16)
        : k == 2 ? _mm256_slli_epi32(x, 8)
                 : x;
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(x, 24));
}
/* Transposes 4 x 4 numbers within each half: 32-bit neighbours, then 64-bit ones. */
static INLINE void v_transpose_halves(v_real a[4])
{
    v_real lo = _mm256_unpacklo_ps(a[0], a[1]), hi = _mm256_unpackhi_ps(a[0], a[1]);
    v_real lo2 = _mm256_unpacklo_ps(a[2], a[3]), hi2 = _mm256_unpackhi_ps(a[2], a[3]);
    a[0] = _mm256_shuffle_ps(lo, lo2, 0x44);
    a[1] = _mm256_shuffle_ps(lo, lo2, 0xee);
    a[2] = _mm256_shuffle_ps(hi, hi2, 0x44);
    a[3] = _mm256_shuffle_ps(hi, hi2, 0xee);
}
static INLINE void v_transpose(v_real a[LANES])
{
    v_transpose_halves(a), v_transpose_halves(a + 4);
    UNROLLED for (int i = 0; i < 4; i++)
    {
        v_real t = a[i + 4];
        a[i + 4] = _mm256_permute2f128_ps(a[i], t, 0x31);
        a[i] = _mm256_permute2f128_ps(a[i], t, 0x20);
    }
}

/* a[k] = column k of these rows. Loads bring halves to their places: two ports shuffle. */
static INLINE void v_load_columns(v_real a[LANES], const real *const rows[LANES])
{
    UNROLLED for (int i = 0; i < 8; i++)
    {
        a[i] = _mm256_castps128_ps256(_mm_loadu_ps(rows[i % 4] + i / 4 * 4));
        a[i] = _mm256_insertf128_ps(a[i], _mm_loadu_ps(rows[i % 4 + 4] + i / 4 * 4), 1);
    }
    v_transpose_halves(a), v_transpose_halves(a + 4);
}
