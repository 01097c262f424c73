/* The vocabulary of integer products with AVX2: codes widen to 16 bits, since
 * _mm256_maddubs_epi16 saturates. What each function must do is written in
 * vec/scalar_int8.h. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef int16_t term;
typedef int16_t code;
typedef __m256i v_dots; /* two sums for each of 4 columns */
typedef __m256i v_quads;
typedef __m256i v_four;
typedef __m256i v_bytes;

enum { DOTS = 2, OFFSET = 0 };

static inline v_dots v_begin_dots(int32_t begin)
{
    (void)begin; /* which is 0 */
    return _mm256_setzero_si256();
}

static inline v_bytes v_load_bytes(const char *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline v_bytes v_narrow_bytes(const char *p, const char *above, const int i,
                                     const int n, int zero)
{
    v_bytes codes = v_load_bytes(p);

    codes = i % 2 == 0 ? codes : _mm256_srli_epi16(codes, 4);
    codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
    if (n > 0) {
        const int shift = n * i - 4;
        v_bytes high = v_load_bytes(above);
        high = shift > 0 ? _mm256_srli_epi16(high, shift)
                         : _mm256_slli_epi16(high, -shift);
        high = _mm256_and_si256(high, _mm256_set1_epi8((char)(((1 << n) - 1) << 4)));
        codes = _mm256_or_si256(codes, high);
    }
    return _mm256_sub_epi8(codes, _mm256_set1_epi8((char)zero));
}

static inline __m128i load_half(const char *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

static inline v_quads v_load_quads(const char *p)
{
    return _mm256_cvtepi8_epi16(load_half(p));
}

static inline v_quads v_narrow_quads(const char *p, const char *above, const int i,
                                     const int n, int zero)
{
    v_quads codes = _mm256_cvtepu8_epi16(load_half(p));

    codes = i % 2 == 0 ? _mm256_and_si256(codes, _mm256_set1_epi16(15))
                       : _mm256_srli_epi16(codes, 4);
    if (n > 0) {
        const int shift = n * i - 4;
        v_quads high = _mm256_cvtepu8_epi16(load_half(above));
        high = shift > 0 ? _mm256_srli_epi16(high, shift)
                         : _mm256_slli_epi16(high, -shift);
        high = _mm256_and_si256(high, _mm256_set1_epi16((short)(((1 << n) - 1) << 4)));
        codes = _mm256_or_si256(codes, high);
    }
    return _mm256_sub_epi16(codes, _mm256_set1_epi16((short)zero));
}

static inline void v_store_ready(code *p, v_quads quads)
{
    _mm256_storeu_si256((__m256i *)(void *)p, quads);
}

static inline v_quads v_load_ready(const code *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline void v_store_terms(term *p, v_real a)
{
    __m256i whole = _mm256_cvtps_epi32(a);
    __m128i upper = _mm256_extracti128_si256(whole, 1);
    __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(whole), upper);
    _mm_storeu_si128((__m128i *)(void *)p, halves);
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

static inline v_real v_float_codes(v_bytes quads, int t)
{
    __m256i left = _mm256_slli_epi32(quads, 24 - 8 * t);
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(left, 24));
}

static inline v_real v_float_bytes(const int8_t *p)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
