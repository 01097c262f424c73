/* The vocabulary of integer products with AVX-512 F, BW, DQ and VL: codes widen to 16 bits.
 * What each function must do is written in vec/scalar_int8.h. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef int16_t term;
typedef __m512i v_dots; /* two sums for each of 8 columns */
typedef __m512i v_quads;
typedef __m512i v_four;

enum { DOTS = 2 };

static inline v_dots v_begin_dots(int32_t total)
{
    (void)total;
    return _mm512_setzero_si512();
}

static inline v_quads v_load_quads(const int8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static inline v_four v_load_four(const term *p)
{
    int64_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi64(four);
}

static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(w, x));
}

static inline v_real v_float_dots(const v_dots sums[DOTS])
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return _mm512_cvtepi32_ps(
        _mm512_add_epi32(_mm512_permutex2var_epi32(sums[0], even, sums[1]),
                         _mm512_permutex2var_epi32(sums[0], odd, sums[1])));
}

static inline v_real v_float_codes(const int8_t *p, int t)
{
    __m512i quads = _mm512_loadu_si512(p);
    __m512i codes =
        _mm512_srai_epi32(_mm512_slli_epi32(quads, (unsigned)(24 - 8 * t)), 24);
    return _mm512_cvtepi32_ps(codes);
}
