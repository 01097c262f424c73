/* The vocabulary of products of 16-bit integers and bytes with AVX2. What each function must do
 * is written in vec/scalar_shorts.h. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m256i v_shorts;
typedef __m256i v_sums;
typedef __m128i v_narrow;

static inline v_sums v_zero_sums(void) { return _mm256_setzero_si256(); }

/* Compilers would multiply much before they add, for which there are too few registers. */
static inline v_sums v_add_pairs(v_sums sum, v_shorts a, v_shorts b)
{
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(a, b)));
    return sum;
}

static inline v_real v_float_sums(v_sums a) { return _mm256_cvtepi32_ps(a); }

static inline void v_store_sums(float *p, v_sums a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, a);
}

static inline v_sums v_load_sums(const float *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

enum { FOLD = 4 };

/* Each half has its own sum of four lanes of each vector. */
static inline v_sums v_fold(const v_sums a[FOLD])
{
    return _mm256_hadd_epi32(_mm256_hadd_epi32(a[0], a[1]),
                             _mm256_hadd_epi32(a[2], a[3]));
}

static inline v_sums v_join(const v_sums a[LANES / FOLD])
{
    return _mm256_add_epi32(_mm256_permute2x128_si256(a[0], a[1], 0x20),
                            _mm256_permute2x128_si256(a[0], a[1], 0x31));
}

static inline v_shorts v_load_shorts(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline void v_store_shorts(void *p, v_shorts a)
{
    _mm256_storeu_si256((__m256i *)p, a);
}

static inline v_shorts v_set1_shorts(const void *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm256_set1_epi32(pair);
}

static inline v_narrow v_load_narrow(const int8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

static inline v_narrow v_load_some(const int8_t *p, ptrdiff_t n)
{
    int8_t bytes[16] = {0};
    memcpy(bytes, p, (size_t)n);
    return v_load_narrow(bytes);
}

static inline v_shorts v_widen(v_narrow a) { return _mm256_cvtepi8_epi16(a); }

static inline void v_zip(v_shorts x[2], v_narrow a, v_narrow b)
{
    x[0] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
    x[1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));
}

static inline void v_zip_shorts(v_shorts x[2], v_shorts a, v_shorts b)
{
    __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
    x[0] = _mm256_permute2x128_si256(low, high, 0x20);
    x[1] = _mm256_permute2x128_si256(low, high, 0x31);
}

static inline void v_store_codes(void *p, v_real a)
{
    __m256i whole = _mm256_cvtps_epi32(a);
    __m128i upper = _mm256_extracti128_si256(whole, 1);
    __m128i codes = _mm_packs_epi32(_mm256_castsi256_si128(whole), upper);
    _mm_storeu_si128((__m128i *)p, codes);
}
