/* What AVX512-BF16 adds to the vector vocabulary of float: pairs of bfloat16 numbers, whose
 * products one instruction adds to a float. Its sums are rounded once for each product, to
 * nearest, and subnormal numbers count as 0. */
#include "avx512_f32.h"

typedef __m512i v_pairs;

static inline v_pairs v_load_pairs(const void *p) { return _mm512_loadu_si512(p); }
static inline void v_store_pairs(void *p, v_pairs a) { _mm512_storeu_si512(p, a); }
static inline v_pairs v_set1_pair(uint32_t x) { return _mm512_set1_epi32((int)x); }

/* sum + the products of the lower halves + those of the upper halves */
static inline v_real v_dot_pairs(v_pairs a, v_pairs b, v_real sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

/* Lane i is low[i] rounded, then high[i] rounded. */
static inline v_pairs v_pair(v_real low, v_real high)
{
    const __m512i zip =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                         23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(zip, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* As v_store_bf16, in one instruction, for which subnormal numbers count as 0. */
static inline void v_store_rounded(uint16_t *p, v_real a)
{
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(a));
}

/* The same of two vectors, with the instruction of v_pair. */
static inline void v_store_two_rounded(uint16_t *p, v_real a, uint16_t *q, v_real b)
{
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b, a);

    _mm256_storeu_si256((__m256i *)p, _mm512_castsi512_si256(both));
    _mm256_storeu_si256((__m256i *)q, _mm512_extracti64x4_epi64(both, 1));
}

/* The bits of v_store_bf16, sooner where no number is subnormal. */
static inline void v_store_bf16_fast(uint16_t *p, v_real a)
{
    if (_mm512_fpclass_ps_mask(a, 0x20) != 0) {
        v_store_bf16(p, a);
    } else {
        v_store_rounded(p, a);
    }
}

/* Lane i is element i of either row. */
static inline v_pairs v_zip_bf16(const uint16_t *low, const uint16_t *high)
{
    const __m512i zip =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                         39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    __m512i a = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)low));
    __m512i b = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)high));
    return _mm512_permutex2var_epi16(a, zip, b);
}

static INLINE void v_transpose_pairs(v_pairs a[LANES])
{
    v_real t[LANES];

    UNROLLED for (int i = 0; i < LANES; i++) { t[i] = _mm512_castsi512_ps(a[i]); }
    v_transpose(t);
    UNROLLED for (int i = 0; i < LANES; i++) { a[i] = _mm512_castps_si512(t[i]); }
}
