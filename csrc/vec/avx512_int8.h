/* The vocabulary of integer products with AVX-512 F, BW, DQ and VL: codes widen to 16 bits.
 * What each function must do is written in vec/scalar_int8.h. */
#include "vec/avx512_codes.h"

#include <stdint.h>
#include <string.h>

typedef int16_t term;
typedef int16_t code;
typedef struct {
    __m512i low, high; /* two sums for each of 8 columns */
} v_dots;
typedef struct {
    __m512i low, high;
} v_quads;
typedef __m512i v_four;

enum { OFFSET = 0 };

static inline v_real v_float_codes(v_codes codes, const int t)
{
    return v_byte(_mm512_castsi512_ps(codes), t);
}

static inline v_dots v_begin_dots(int32_t begin)
{
    __m512i one_of_two = _mm512_set1_epi64((uint32_t)begin);
    return (v_dots){one_of_two, one_of_two};
}

static inline v_quads v_quads_of(v_codes codes, const bool wide)
{
    (void)wide;
    return (v_quads){_mm512_cvtepi8_epi16(_mm512_castsi512_si256(codes)),
                     _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(codes, 1))};
}

static inline void v_store_ready(code *p, v_quads quads)
{
    _mm512_storeu_si512(p, quads.low);
    _mm512_storeu_si512(p + 32, quads.high);
}

static inline v_quads v_load_ready(const code *p)
{
    return (v_quads){_mm512_loadu_si512(p), _mm512_loadu_si512(p + 32)};
}

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
    return (v_dots){_mm512_add_epi32(sum.low, _mm512_madd_epi16(w.low, x)),
                    _mm512_add_epi32(sum.high, _mm512_madd_epi16(w.high, x))};
}

static inline v_real v_float_dots(v_dots sum)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return _mm512_cvtepi32_ps(
        _mm512_add_epi32(_mm512_permutex2var_epi32(sum.low, even, sum.high),
                         _mm512_permutex2var_epi32(sum.low, odd, sum.high)));
}
