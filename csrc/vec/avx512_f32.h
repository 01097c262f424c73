/* The vector vocabulary: float, 16 lanes, AVX-512 F, BW, DQ, VL. What each function must
 * do is written in vec/scalar_f32.h. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef float real;
typedef __m512 v_real;
typedef __mmask16 v_mask;

enum { LANES = 16 };

static inline v_real v_load(const real *p) { return _mm512_loadu_ps(p); }
static inline void v_store(real *p, v_real a) { _mm512_storeu_ps(p, a); }
static inline v_real v_set1(real x) { return _mm512_set1_ps(x); }

static inline v_real v_add(v_real a, v_real b) { return _mm512_add_ps(a, b); }
static inline v_real v_sub(v_real a, v_real b) { return _mm512_sub_ps(a, b); }
static inline v_real v_mul(v_real a, v_real b) { return _mm512_mul_ps(a, b); }
static inline v_real v_div(v_real a, v_real b) { return _mm512_div_ps(a, b); }
static inline v_real v_max(v_real a, v_real b) { return _mm512_max_ps(a, b); }

static inline v_real v_fma(v_real a, v_real b, v_real c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline v_real v_fms(v_real a, v_real b, v_real c)
{
    return _mm512_fmsub_ps(a, b, c);
}
static inline v_real v_round(v_real a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline v_real v_scale2(v_real a, v_real n) { return _mm512_scalef_ps(a, n); }
static inline v_real v_scale2_unless(v_mask zero, v_real a, v_real n)
{
    return _mm512_maskz_scalef_ps((v_mask)~zero, a, n);
}

static inline v_real v_exponent(v_real a) { return _mm512_getexp_ps(a); }
static inline v_mask v_less(v_real a, v_real b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

static inline v_mask v_is_nan(v_real a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}

static inline v_mask v_mask_of(uint64_t bits) { return (v_mask)bits; }
static inline uint64_t v_bits_of(v_mask mask) { return mask; }

static inline v_real v_select(v_mask mask, v_real yes, v_real no)
{
    return _mm512_mask_blend_ps(mask, no, yes);
}

static inline real v_reduce_max(v_real a) { return _mm512_reduce_max_ps(a); }
static inline real v_reduce_add(v_real a) { return _mm512_reduce_add_ps(a); }
static inline v_real v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline v_real v_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static inline void v_store_f16(uint16_t *p, v_real a)
{
    __m256i half = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)p, half);
}

static inline void v_store_bf16(uint16_t *p, v_real a)
{
    __m512i bits = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounding = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i rounded = _mm512_add_epi32(bits, rounding);
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
    bits = _mm512_mask_blend_epi32(v_is_nan(a), rounded, quiet);
    bits = _mm512_srli_epi32(bits, 16);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(bits));
}

static inline void v_store_code_pairs(void *p, v_real low, v_real high)
{
    __m512i first = _mm512_cvtps_epi32(low);
    __m512i second = _mm512_slli_epi32(_mm512_cvtps_epi32(high), 16);
    _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xaaaaaaaa, first, second));
}

static inline v_real v_load_i8(const int8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

/* The byte plus 128 becomes low bits of 2^23 or 2^15: shifts take the units of shuffles. */
static inline v_real v_byte(v_real a, int k)
{
    __m512i x = _mm512_srli_epi32(_mm512_castps_si512(a), k < 2 ? 0 : 16);
    __m512i mask = _mm512_set1_epi32(k % 2 == 0 ? 0xff : 0xff00);
    v_real power = _mm512_set1_ps((k % 2 == 0 ? 0x1p23F : 0x1p15F) + 128);
    x = _mm512_ternarylogic_epi32(x, mask, _mm512_castps_si512(power), 0x6a); /* & ^ */
    return _mm512_sub_ps(_mm512_castsi512_ps(x), power);
}

/* Transposes the squares of 128-bit quarters: neighbours' 32-bit and 64-bit halves. */
static INLINE void v_transpose_quarters(v_real a[4])
{
    __m512d lo0 = _mm512_castps_pd(_mm512_unpacklo_ps(a[0], a[1]));
    __m512d hi0 = _mm512_castps_pd(_mm512_unpackhi_ps(a[0], a[1]));
    __m512d lo1 = _mm512_castps_pd(_mm512_unpacklo_ps(a[2], a[3]));
    __m512d hi1 = _mm512_castps_pd(_mm512_unpackhi_ps(a[2], a[3]));
    a[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo0, lo1));
    a[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo0, lo1));
    a[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(hi0, hi1));
    a[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(hi0, hi1));
}

/* Two rounds within quarters, and two of quarters. */
static INLINE void v_transpose(v_real a[LANES])
{
    v_real t[LANES];

    UNROLLED for (int i = 0; i < 16; i += 4) { v_transpose_quarters(a + i); }
    UNROLLED for (int i = 0; i < 4; i++)
    {
        t[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
    }
    UNROLLED for (int i = 0; i < 4; i++)
    {
        a[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        a[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        a[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* a[k] = column k of these rows. Loads bring quarters to their places: shuffles wait less. */
static INLINE void v_load_columns(v_real a[LANES], const real *const rows[LANES])
{
    UNROLLED for (int i = 0; i < 16; i++)
    {
        a[i] = _mm512_castps128_ps512(_mm_loadu_ps(rows[i % 4] + i / 4 * 4));
        a[i] = _mm512_insertf32x4(a[i], _mm_loadu_ps(rows[i % 4 + 4] + i / 4 * 4), 1);
        a[i] = _mm512_insertf32x4(a[i], _mm_loadu_ps(rows[i % 4 + 8] + i / 4 * 4), 2);
        a[i] = _mm512_insertf32x4(a[i], _mm_loadu_ps(rows[i % 4 + 12] + i / 4 * 4), 3);
    }
    UNROLLED for (int i = 0; i < 16; i += 4) { v_transpose_quarters(a + i); }
}
