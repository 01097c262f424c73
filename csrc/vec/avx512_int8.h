/* The vocabulary of integer products with AVX-512 F, BW, DQ and VL: codes widen to 16 bits.
 * What each function must do is written in vec/scalar_int8.h. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef int16_t term;
typedef int16_t code;
typedef __m512i v_dots; /* two sums for each of 8 columns */
typedef __m512i v_quads;
typedef __m512i v_four;
typedef __m512i v_bytes;

enum { DOTS = 2, OFFSET = 0 };

static inline v_dots v_begin_dots(int32_t begin)
{
    (void)begin; /* which is 0 */
    return _mm512_setzero_si512();
}

static inline v_bytes v_load_bytes(const char *p) { return _mm512_loadu_si512(p); }

static inline v_bytes v_narrow_bytes(const char *p, const char *above, const int i,
                                     const int n, int zero)
{
    v_bytes codes = v_load_bytes(p);

    codes = i % 2 == 0 ? codes : _mm512_srli_epi16(codes, 4);
    codes = _mm512_and_si512(codes, _mm512_set1_epi8(15));
    if (n > 0) {
        const int shift = n * i - 4;
        v_bytes high = v_load_bytes(above);
        high = shift > 0 ? _mm512_srli_epi32(high, (unsigned)shift)
                         : _mm512_slli_epi32(high, (unsigned)-shift);
        high = _mm512_and_si512(high, _mm512_set1_epi8((char)(((1 << n) - 1) << 4)));
        codes = _mm512_or_si512(codes, high);
    }
    return _mm512_sub_epi8(codes, _mm512_set1_epi8((char)zero));
}

static inline __m256i load_half(const char *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline v_quads v_load_quads(const char *p)
{
    return _mm512_cvtepi8_epi16(load_half(p));
}

static inline v_quads v_narrow_quads(const char *p, const char *above, const int i,
                                     const int n, int zero)
{
    v_quads codes = _mm512_cvtepu8_epi16(load_half(p));

    codes = i % 2 == 0 ? _mm512_and_si512(codes, _mm512_set1_epi16(15))
                       : _mm512_srli_epi16(codes, 4);
    if (n > 0) {
        const int shift = n * i - 4;
        v_quads high = _mm512_cvtepu8_epi16(load_half(above));
        high = shift > 0 ? _mm512_srli_epi32(high, (unsigned)shift)
                         : _mm512_slli_epi32(high, (unsigned)-shift);
        high = _mm512_and_si512(high, _mm512_set1_epi16((short)(((1 << n) - 1) << 4)));
        codes = _mm512_or_si512(codes, high);
    }
    return _mm512_sub_epi16(codes, _mm512_set1_epi16((short)zero));
}

static inline void v_store_ready(code *p, v_quads quads)
{
    _mm512_storeu_si512(p, quads);
}

static inline v_quads v_load_ready(const code *p) { return _mm512_loadu_si512(p); }

static inline void v_store_terms(term *p, v_real a)
{
    __m256i halves = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a));
    _mm256_storeu_si256((__m256i *)(void *)p, halves);
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

static inline v_real v_float_codes(v_bytes quads, int t)
{
    __m512i left = _mm512_slli_epi32(quads, (unsigned)(24 - 8 * t));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(left, 24));
}

static inline v_real v_float_bytes(const int8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
