/* The vocabulary of integer products with AVX-VNNI: as AVX512-VNNI's, with vectors of 256 bits. What
 * each function must do is written in vec/scalar_int8.h. */
#include "vec/avx2_codes.h"

typedef int8_t term;
typedef uint8_t code;
typedef __m256i v_quads;
typedef __m256i v_four;

enum { OFFSET = 128 };

static inline v_quads v_quads_of(v_codes codes, const bool wide)
{
    return wide ? _mm256_xor_si256(codes, _mm256_set1_epi8(-128)) : codes;
}

static inline v_table v_load_table(const int8_t *p)
{
    return v_quads_of(v_spread(p), true);
}

static inline v_quads v_look_up(v_table table, v_codes codes)
{
    return _mm256_shuffle_epi8(table, codes);
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
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(halves, halves));
}

static inline v_four v_load_four(const term *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Compilers would load operands of several sums first, for which there are too few registers. */
static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    sum = _mm256_dpbusd_avx_epi32(sum, w, x);
    __asm__("" : "+x"(sum));
    return sum;
}
