/* The vocabulary of products of 16-bit integers and bytes with AVX512-VNNI. What each function
 * must do is written in vec/scalar_shorts.h. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m512i v_shorts;
typedef __m512i v_sums;
typedef __m256i v_narrow;

static inline v_sums v_add_pairs(v_sums sum, v_shorts a, v_shorts b)
{
    sum = _mm512_dpwssd_epi32(sum, a, b);
    __asm__("" : "+v"(sum)); /* or GCC copies sums back and forth */
    return sum;
}

static inline v_sums v_zero_sums(void) { return _mm512_setzero_si512(); }
static inline v_real v_float_sums(v_sums a) { return _mm512_cvtepi32_ps(a); }
static inline void v_store_sums(float *p, v_sums a) { _mm512_storeu_si512(p, a); }
static inline v_sums v_load_sums(const float *p) { return _mm512_loadu_si512(p); }

enum { FOLD = 4 };

/* Each quarter has its own sum of four lanes of each vector. */
static inline v_sums v_fold(const v_sums a[FOLD])
{
    v_sums low = _mm512_add_epi32(_mm512_unpacklo_epi32(a[0], a[1]),
                                  _mm512_unpackhi_epi32(a[0], a[1]));
    v_sums high = _mm512_add_epi32(_mm512_unpacklo_epi32(a[2], a[3]),
                                   _mm512_unpackhi_epi32(a[2], a[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(low, high),
                            _mm512_unpackhi_epi64(low, high));
}

static inline v_sums v_join(const v_sums a[LANES / FOLD])
{
    v_sums low = _mm512_add_epi32(_mm512_shuffle_i32x4(a[0], a[1], 0x88),
                                  _mm512_shuffle_i32x4(a[0], a[1], 0xdd));
    v_sums high = _mm512_add_epi32(_mm512_shuffle_i32x4(a[2], a[3], 0x88),
                                   _mm512_shuffle_i32x4(a[2], a[3], 0xdd));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88),
                            _mm512_shuffle_i32x4(low, high, 0xdd));
}

static inline v_shorts v_load_shorts(const void *p) { return _mm512_loadu_si512(p); }
static inline void v_store_shorts(void *p, v_shorts a) { _mm512_storeu_si512(p, a); }

static inline v_shorts v_set1_shorts(const void *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}

static inline v_narrow v_load_narrow(const int8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline v_narrow v_load_some(const int8_t *p, ptrdiff_t n)
{
    return _mm256_maskz_loadu_epi8((__mmask32)((UINT64_C(1) << n) - 1), p);
}

static inline v_shorts v_widen(v_narrow a) { return _mm512_cvtepi8_epi16(a); }

/* Bytes are zipped before they widen, in an order that keeps halves together. */
static inline void v_zip(v_shorts x[2], v_narrow a, v_narrow b)
{
    a = _mm256_permute4x64_epi64(a, 0xd8);
    b = _mm256_permute4x64_epi64(b, 0xd8);
    x[0] = _mm512_cvtepi8_epi16(_mm256_unpacklo_epi8(a, b));
    x[1] = _mm512_cvtepi8_epi16(_mm256_unpackhi_epi8(a, b));
}

/* Quarters are put in an order that unpacking keeps. */
static inline void v_zip_shorts(v_shorts x[2], v_shorts a, v_shorts b)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    a = _mm512_permutexvar_epi64(order, a);
    b = _mm512_permutexvar_epi64(order, b);
    x[0] = _mm512_unpacklo_epi16(a, b);
    x[1] = _mm512_unpackhi_epi16(a, b);
}

static inline void v_store_codes(void *p, v_real a)
{
    __m256i codes = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a));
    _mm256_storeu_si256((__m256i *)p, codes);
}
