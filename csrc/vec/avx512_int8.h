/* The vocabulary of integer products with AVX-512 F, BW, DQ and VL: codes widen to 16 bits.
 * What each function must do is written in vec/scalar_int8.h. */
#include "vec/avx512_codes.h"

#include <stdint.h>
#include <string.h>

typedef int16_t term;
typedef int16_t code;
typedef __m512i v_dots;
typedef struct {
    __m512i even, odd; /* pairs of codes of 16 columns */
} v_quads;
typedef v_quads v_four;

enum { OFFSET = 0 };

static inline v_dots v_begin_dots(int32_t begin) { return _mm512_set1_epi32(begin); }

static inline v_quads v_quads_of(v_codes codes, const bool wide)
{
    if (wide) {
        return (v_quads){_mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 8),
                         _mm512_srai_epi16(codes, 8)};
    }
    return (v_quads){_mm512_and_si512(codes, _mm512_set1_epi16(255)),
                     _mm512_srli_epi16(codes, 8)};
}

static inline v_table v_load_table(const int8_t *p) { return v_spread(p); }

static inline v_quads v_look_up(v_table table, v_codes codes)
{
    return v_quads_of(_mm512_shuffle_epi8(table, codes), true);
}

static inline void v_store_ready(code *p, v_quads quads)
{
    _mm512_storeu_si512(p, quads.even);
    _mm512_storeu_si512(p + 32, quads.odd);
}

static inline v_quads v_load_ready(const code *p)
{
    return (v_quads){_mm512_loadu_si512(p), _mm512_loadu_si512(p + 32)};
}

/* Of each four, those with even numbers come first. */
static inline void v_store_terms(term *p, v_real a)
{
    __m256i halves = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a));
    halves = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(halves, 0xd8), 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)p, halves);
}

static inline v_four v_load_four(const term *p)
{
    int32_t two[2];
    memcpy(two, p, sizeof two);
    return (v_four){_mm512_set1_epi32(two[0]), _mm512_set1_epi32(two[1])};
}

/* Compilers would add products first, for which there are too few registers. */
static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(w.even, x.even));
    __asm__("" : "+v"(sum));
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(w.odd, x.odd));
    __asm__("" : "+v"(sum));
    return sum;
}

static inline v_real v_float_dots(v_dots sum) { return _mm512_cvtepi32_ps(sum); }
