/* Codes of quantised matrices, for both vocabularies of integer products with AVX-512. What each
 * function must do is written in vec/scalar_int8.h. */
#include <immintrin.h>

typedef __m512i v_codes;
typedef __m512i v_table;

/* Each quarter has the 16 bytes. */
static inline v_table v_spread(const int8_t *p)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline v_codes v_load_codes(const char *p) { return _mm512_loadu_si512(p); }

static inline bool v_keep_loads(void)
{
    __asm__ volatile("" : : : "memory");
    return true;
}

/* Of the bits above, a mask leaves those of every fourth bit's quads: then a shift brings no others
 * to the upper halves of bytes. */
static inline v_codes v_narrow_codes(v_codes codes, v_codes above, const int i,
                                     const int n)
{
    const __m512i lower = _mm512_set1_epi8(15);
    const int shift = n * i - 4, mask = (((1 << n) - 1) << n * i % 4) * 0x11;

    codes = i % 2 == 0 ? codes : _mm512_srli_epi32(codes, 4);
    if (n == 0) {
        return _mm512_and_si512(codes, lower);
    }
    __m512i high = _mm512_and_si512(above, _mm512_set1_epi8((char)mask));
    high = shift > 0   ? _mm512_srli_epi32(high, (unsigned)shift)
           : shift < 0 ? _mm512_slli_epi32(high, (unsigned)-shift)
                       : high;
    return _mm512_ternarylogic_epi32(lower, codes, high, 0xca); /* ? : */
}

static inline v_real v_max_size(v_real a, v_real b)
{
    return _mm512_range_ps(a, b, 0xb);
}

static inline v_real v_load_powers(const uint8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m512i twice = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
    twice = _mm512_max_epu32(twice, _mm512_set1_epi32(1 << 22));
    return v_mul(_mm512_castsi512_ps(twice), v_set1(0.5f));
}
