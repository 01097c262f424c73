/* The vocabulary of integer products with AVX2: codes widen to 16 bits, since
 * _mm256_maddubs_epi16 saturates. What each function must do is written in
 * vec/scalar_int8.h. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef int16_t term;
typedef __m256i v_dots; /* two sums for each of 4 columns */
typedef __m256i v_quads;
typedef __m256i v_four;

enum { DOTS = 2 };

static inline v_dots v_begin_dots(int32_t total)
{
    (void)total;
    return _mm256_setzero_si256();
}

static inline v_quads v_load_quads(const int8_t *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline v_four v_load_four(const term *p)
{
    int64_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi64x(four);
}

static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
}

static inline v_real v_float_dots(const v_dots sums[DOTS])
{
    __m256i halves = _mm256_hadd_epi32(sums[0], sums[1]); /* columns 0 1 4 5 2 3 6 7 */
    return _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(halves, 0xd8));
}

static inline v_real v_float_codes(const int8_t *p, int t)
{
    __m256i quads = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i codes = _mm256_srai_epi32(_mm256_slli_epi32(quads, 24 - 8 * t), 24);
    return _mm256_cvtepi32_ps(codes);
}
