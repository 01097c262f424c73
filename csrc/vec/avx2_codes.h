/* Codes of quantised matrices, for both vocabularies of integer products with vectors of 256 bits.
 * What each function must do is written in vec/scalar_int8.h. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m256i v_codes;
typedef __m256i v_dots;
typedef __m256i v_table;

/* Each half has the 16 bytes. */
static inline v_table v_spread(const int8_t *p)
{
    return _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline v_codes v_load_codes(const char *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline bool v_keep_loads(void) { return false; }

static inline v_codes v_narrow_codes(v_codes codes, v_codes above, const int i,
                                     const int n)
{
    codes = i % 2 == 0 ? codes : _mm256_srli_epi16(codes, 4);
    codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
    if (n > 0) {
        const int shift = n * i - 4;
        v_codes high = shift > 0 ? _mm256_srli_epi16(above, shift)
                                 : _mm256_slli_epi16(above, -shift);
        high = _mm256_and_si256(high, _mm256_set1_epi8((char)(((1 << n) - 1) << 4)));
        codes = _mm256_or_si256(codes, high);
    }
    return codes;
}

static inline v_dots v_begin_dots(int32_t begin) { return _mm256_set1_epi32(begin); }

static inline v_real v_max_size(v_real a, v_real b)
{
    return v_max(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a), b);
}

static inline v_real v_load_powers(const uint8_t *p)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
    __m256i twice = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
    twice = _mm256_max_epu32(twice, _mm256_set1_epi32(1 << 22));
    return v_mul(_mm256_castsi256_ps(twice), v_set1(0.5f));
}

static inline v_real v_float_dots(v_dots sum) { return _mm256_cvtepi32_ps(sum); }
