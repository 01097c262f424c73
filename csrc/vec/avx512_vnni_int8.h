/* The vocabulary of integer products with AVX512-VNNI, which multiplies unsigned bytes by
 * signed ones: codes of 8 bits have an offset of 128. Sums are exact modulo 2^32, so they are the
 * same in the end. What each function must do is written in vec/scalar_int8.h. */
#include "vec/avx512_codes.h"

#include <stdint.h>
#include <string.h>

typedef int8_t term;
typedef uint8_t code;
typedef __m512i v_dots;
typedef __m512i v_quads;
typedef __m512i v_four;

enum { OFFSET = 128 };

/* Rows of x, and terms, that AMX-INT8 multiplies at a time, at most. */
enum { UNIT_ROWS = 16, UNIT_STEP = 64 };
#define HAS_INTEGER_UNIT 1

static inline v_dots v_begin_dots(int32_t begin) { return _mm512_set1_epi32(begin); }

static inline v_quads v_quads_of(v_codes codes, const bool wide)
{
    return wide ? _mm512_xor_si512(codes, _mm512_set1_epi8(-128)) : codes;
}

static inline v_table v_load_table(const int8_t *p)
{
    return v_quads_of(v_spread(p), true);
}

static inline v_quads v_look_up(v_table table, v_codes codes)
{
    return _mm512_shuffle_epi8(table, codes);
}

static inline void v_store_ready(code *p, v_quads quads)
{
    _mm512_storeu_si512(p, quads);
}

static inline v_quads v_load_ready(const code *p) { return _mm512_loadu_si512(p); }

static inline void v_store_terms(term *p, v_real a)
{
    __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a));
    _mm_storeu_si128((__m128i *)(void *)p, bytes);
}

static inline v_four v_load_four(const term *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    sum = _mm512_dpbusd_epi32(sum, w, x);
    return sum;
}

static inline v_real v_float_dots(v_dots sum) { return _mm512_cvtepi32_ps(sum); }
