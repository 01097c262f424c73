/* The vocabulary of integer products with AVX2: codes widen to 16 bits, since
 * _mm256_maddubs_epi16 saturates. What each function must do is written in
 * vec/scalar_int8.h. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef int16_t term;
typedef int16_t code;
typedef __m256i v_codes;
typedef struct {
    __m256i low, high; /* two sums for each of 4 columns */
} v_dots;
typedef struct {
    __m256i low, high;
} v_quads;
typedef __m256i v_four;

enum { OFFSET = 0 };

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

static inline v_codes v_codes_less(v_codes codes, int zero)
{
    return _mm256_sub_epi8(codes, _mm256_set1_epi8((char)zero));
}

static inline v_real v_float_codes(v_codes codes, const int t)
{
    return v_byte(_mm256_castsi256_ps(codes), t);
}

typedef int v_table;

static inline v_table v_begin_nibbles(int zero) { return zero; }

static inline v_real v_float_nibbles(v_codes codes, const int t, v_table zero)
{
    return v_float_codes(v_codes_less(v_narrow_codes(codes, codes, t / 4, 0), zero),
                         t % 4);
}

static inline v_dots v_begin_dots(int32_t begin)
{
    __m256i one_of_two = _mm256_set1_epi64x((uint32_t)begin);
    return (v_dots){one_of_two, one_of_two};
}

static inline v_quads v_quads_of(v_codes codes, const bool wide)
{
    (void)wide;
    return (v_quads){_mm256_cvtepi8_epi16(_mm256_castsi256_si128(codes)),
                     _mm256_cvtepi8_epi16(_mm256_extracti128_si256(codes, 1))};
}

static inline void v_store_ready(code *p, v_quads quads)
{
    _mm256_storeu_si256((__m256i *)(void *)p, quads.low);
    _mm256_storeu_si256((__m256i *)(void *)(p + 16), quads.high);
}

static inline v_quads v_load_ready(const code *p)
{
    return (v_quads){_mm256_loadu_si256((const __m256i *)(const void *)p),
                     _mm256_loadu_si256((const __m256i *)(const void *)(p + 16))};
}

static inline void v_store_terms(term *p, v_real a)
{
    __m256i whole = _mm256_cvtps_epi32(a);
    __m128i upper = _mm256_extracti128_si256(whole, 1);
    __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(whole), upper);
    _mm_storeu_si128((__m128i *)(void *)p, halves);
}

static inline v_four v_load_four(const term *p)
{
    int64_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi64x(four);
}

static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    return (v_dots){_mm256_add_epi32(sum.low, _mm256_madd_epi16(w.low, x)),
                    _mm256_add_epi32(sum.high, _mm256_madd_epi16(w.high, x))};
}

static inline v_real v_float_dots(v_dots sum)
{
    __m256i halves = _mm256_hadd_epi32(sum.low, sum.high); /* columns 0 1 4 5 2 3 6 7 */
    return _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(halves, 0xd8));
}
