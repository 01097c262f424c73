/* The vocabulary of integer products with AVX512-VNNI, which multiplies unsigned bytes by
 * signed ones: codes have an offset of 128. Sums are exact modulo 2^32, so they are the same in
 * the end.
 * What each function must do is written in vec/scalar_int8.h. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef int8_t term;
typedef uint8_t code;
typedef __m512i v_dots;
typedef __m512i v_quads;
typedef __m512i v_four;
typedef __m512i v_bytes;

enum { DOTS = 1, OFFSET = 128 };

static inline v_dots v_begin_dots(int32_t begin) { return _mm512_set1_epi32(begin); }

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

static inline v_quads v_load_quads(const char *p)
{
    return _mm512_xor_si512(v_load_bytes(p), _mm512_set1_epi8(-128));
}

static inline v_quads v_narrow_quads(const char *p, const char *above, const int i,
                                     const int n, int zero)
{
    return v_narrow_bytes(p, above, i, n, zero - OFFSET);
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

static inline v_real v_float_dots(const v_dots sums[DOTS])
{
    return _mm512_cvtepi32_ps(sums[0]);
}

/* The last code of a quad is a shift away; the product with a unit takes out another one. */
static inline v_real v_float_codes(v_bytes quads, int t)
{
    __m512i one = t == 3 ? _mm512_srai_epi32(quads, 24)
                         : _mm512_dpbusd_epi32(_mm512_setzero_si512(),
                                               _mm512_set1_epi32(1 << 8 * t), quads);
    return _mm512_cvtepi32_ps(one);
}

static inline v_real v_float_bytes(const int8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
