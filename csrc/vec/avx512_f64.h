/* The vector vocabulary: double, 8 lanes, AVX-512 F, BW, DQ, VL. What each function must
 * do is written in vec/scalar_f32.h. */
#include <immintrin.h>
#include <stdint.h>

typedef double real;
typedef __m512d v_real;
typedef __mmask8 v_mask;

enum { LANES = 8 };

static inline v_real v_load(const real *p) { return _mm512_loadu_pd(p); }
static inline void v_store(real *p, v_real a) { _mm512_storeu_pd(p, a); }
static inline v_real v_set1(real x) { return _mm512_set1_pd(x); }

static inline v_real v_add(v_real a, v_real b) { return _mm512_add_pd(a, b); }
static inline v_real v_sub(v_real a, v_real b) { return _mm512_sub_pd(a, b); }
static inline v_real v_mul(v_real a, v_real b) { return _mm512_mul_pd(a, b); }
static inline v_real v_div(v_real a, v_real b) { return _mm512_div_pd(a, b); }
static inline v_real v_max(v_real a, v_real b) { return _mm512_max_pd(a, b); }

static inline v_real v_fma(v_real a, v_real b, v_real c)
{
    return _mm512_fmadd_pd(a, b, c);
}

static inline v_real v_fms(v_real a, v_real b, v_real c)
{
    return _mm512_fmsub_pd(a, b, c);
}

static inline v_real v_round(v_real a)
{
    return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline v_real v_scale2(v_real a, v_real n) { return _mm512_scalef_pd(a, n); }
static inline v_real v_scale2_unless(v_mask zero, v_real a, v_real n)
{
    return _mm512_maskz_scalef_pd((v_mask)~zero, a, n);
}

static inline v_real v_exponent(v_real a) { return _mm512_getexp_pd(a); }

static inline v_mask v_less(v_real a, v_real b)
{
    return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ);
}

static inline v_mask v_is_nan(v_real a)
{
    return _mm512_cmp_pd_mask(a, a, _CMP_UNORD_Q);
}

static inline v_mask v_mask_of(uint64_t bits) { return (v_mask)bits; }
static inline uint64_t v_bits_of(v_mask mask) { return mask; }

static inline v_real v_select(v_mask mask, v_real yes, v_real no)
{
    return _mm512_mask_blend_pd(mask, no, yes);
}

static inline real v_reduce_max(v_real a) { return _mm512_reduce_max_pd(a); }

static inline v_real v_load_f16(const uint16_t *p)
{
    return _mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)));
}

static inline v_real v_load_i8(const int8_t *p)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)p);
    return _mm512_cvtepi32_pd(_mm256_cvtepi8_epi32(bytes));
}

static inline v_real v_load_bf16(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
}

/* Three rounds: neighbours' 64-bit halves, then 128-bit quarters twice. */
static INLINE void v_transpose(v_real a[LANES])
{
    v_real t[LANES];

    UNROLLED for (int i = 0; i < 8; i += 2)
    {
        t[i] = _mm512_unpacklo_pd(a[i], a[i + 1]);
        t[i + 1] = _mm512_unpackhi_pd(a[i], a[i + 1]);
    }
    UNROLLED for (int i = 0; i < 2; i++)
    {
        a[i] = _mm512_shuffle_f64x2(t[i], t[i + 2], 0x88);
        a[i + 2] = _mm512_shuffle_f64x2(t[i], t[i + 2], 0xdd);
        a[i + 4] = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0x88);
        a[i + 6] = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0xdd);
    }
    UNROLLED for (int i = 0; i < 2; i++)
    {
        t[i] = _mm512_shuffle_f64x2(a[i], a[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f64x2(a[i], a[i + 4], 0xdd);
        t[i + 2] = _mm512_shuffle_f64x2(a[i + 2], a[i + 6], 0x88);
        t[i + 6] = _mm512_shuffle_f64x2(a[i + 2], a[i + 6], 0xdd);
    }
    UNROLLED for (int i = 0; i < 8; i++) { a[i] = t[i]; }
}
