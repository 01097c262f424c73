/* The vocabulary of integer products with AVX512-VNNI, which multiplies unsigned bytes by
 * signed ones: 128 is added to codes, and 128 times the total of a row's numbers taken from
 * the sums before they begin. Sums are exact modulo 2^32, so they are the same in the end.
 * What each function must do is written in vec/scalar_int8.h. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef int8_t term;
typedef __m512i v_dots;
typedef __m512i v_quads;
typedef __m512i v_four;

enum { DOTS = 1 };

static inline v_dots v_begin_dots(int32_t total)
{
    return _mm512_slli_epi32(_mm512_set1_epi32(-total), 7);
}

static inline v_quads v_load_quads(const int8_t *p)
{
    return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128));
}

static inline v_four v_load_four(const term *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    return _mm512_dpbusd_epi32(sum, w, x);
}

static inline v_real v_float_dots(const v_dots sums[DOTS])
{
    return _mm512_cvtepi32_ps(sums[0]);
}

static inline v_real v_float_codes(const int8_t *p, int t)
{
    __m512i quads = _mm512_loadu_si512(p);
    __m512i codes =
        _mm512_srai_epi32(_mm512_slli_epi32(quads, (unsigned)(24 - 8 * t)), 24);
    return _mm512_cvtepi32_ps(codes);
}
