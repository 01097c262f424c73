/* Codes of quantised matrices, for both vocabularies of integer products with AVX-512. What each
 * function must do is written in vec/scalar_int8.h. */
#include <immintrin.h>

typedef __m512i v_codes;

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

static inline v_codes v_codes_less(v_codes codes, int zero)
{
    return _mm512_sub_epi8(codes, _mm512_set1_epi8((char)zero));
}

/* Numbers by their codes, which shuffles take from the lowest bits of each lane or of its upper
 * half. */
typedef struct {
    __m512 numbers;
    __m512i halves; /* the upper 16 bits of these, twice */
} v_table;

static inline v_table v_begin_nibbles(int zero)
{
    const __m512i codes =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i signed_codes = _mm512_sub_epi32(codes, _mm512_set1_epi32(zero));
    __m512 numbers = _mm512_cvtepi32_ps(signed_codes);
    __m512i upper = _mm512_srli_epi32(_mm512_castps_si512(numbers), 16);
    return (v_table){numbers, _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(upper))};
}

static inline v_real v_float_nibbles(v_codes codes, const int t, v_table table)
{
    const int at = t < 4 ? 8 * t : 8 * t - 28;

    codes = at % 16 > 0 ? _mm512_srli_epi32(codes, (unsigned)at % 16) : codes;
    return at < 16 ? _mm512_permutexvar_ps(codes, table.numbers)
                   : _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(
                         0xaaaaaaaa, codes, table.halves));
}
