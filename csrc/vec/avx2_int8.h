/* The vocabulary of integer products with AVX2: codes of 8 bits widen to 16, since
 * _mm256_maddubs_epi16 saturates; narrow ones with rounded rows stay bytes. What each function
 * must do is written in vec/scalar_int8.h, but of pairs here. */
#include "vec/avx2_codes.h"

typedef int16_t term;
typedef int16_t code;
typedef struct {
    __m256i even, odd; /* pairs of codes of 8 columns */
} v_quads;
typedef v_quads v_four;

enum { OFFSET = 0 };

static inline v_quads v_quads_of(v_codes codes, const bool wide)
{
    if (wide) {
        return (v_quads){_mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8),
                         _mm256_srai_epi16(codes, 8)};
    }
    return (v_quads){_mm256_and_si256(codes, _mm256_set1_epi16(255)),
                     _mm256_srli_epi16(codes, 8)};
}

static inline v_table v_load_table(const int8_t *p) { return v_spread(p); }

static inline v_quads v_look_up(v_table table, v_codes codes)
{
    return v_quads_of(_mm256_shuffle_epi8(table, codes), true);
}

static inline void v_store_ready(code *p, v_quads quads)
{
    _mm256_storeu_si256((__m256i *)(void *)p, quads.even);
    _mm256_storeu_si256((__m256i *)(void *)(p + 16), quads.odd);
}

static inline v_quads v_load_ready(const code *p)
{
    return (v_quads){_mm256_loadu_si256((const __m256i *)(const void *)p),
                     _mm256_loadu_si256((const __m256i *)(const void *)(p + 16))};
}

/* Of each four, those with even numbers come first. */
static inline void v_store_terms(term *p, v_real a)
{
    __m256i whole = _mm256_cvtps_epi32(a);
    __m128i upper = _mm256_extracti128_si256(whole, 1);
    __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(whole), upper);
    halves = _mm_shufflehi_epi16(_mm_shufflelo_epi16(halves, 0xd8), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)p, halves);
}

/* Compilers would load both pairs as one number, and cut that. */
static inline __m256i v_load_pair(const term *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm256_set1_epi32(pair);
}

static inline v_four v_load_four(const term *p)
{
    return (v_four){v_load_pair(p), v_load_pair(p + 2)};
}

/* Compilers would add products first, for which there are too few registers. */
static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w.even, x.even));
    __asm__("" : "+x"(sum));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w.odd, x.odd));
    __asm__("" : "+x"(sum));
    return sum;
}

/* Pairs of quads of codes of up to 6 bits, and terms of rounded rows, as bytes: in 16 bits no sum
 * of four products overflows. */
#define PAIRS_NARROW 1

static inline v_quads v_pair_of(v_codes a, v_codes b) { return (v_quads){a, b}; }

static inline v_dots v_add_pair_dots(v_dots sum, v_quads w, v_four x)
{
    __m256i products = _mm256_add_epi16(_mm256_maddubs_epi16(w.even, x.even),
                                        _mm256_maddubs_epi16(w.odd, x.odd));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
    __asm__("" : "+x"(sum));
    return sum;
}

/* Digits of split rows as such bytes. */
static inline void v_store_bytes(int8_t *p, v_real a)
{
    __m256i whole = _mm256_cvtps_epi32(a);
    __m128i upper = _mm256_extracti128_si256(whole, 1);
    __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(whole), upper);
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(halves, halves));
}

/* Makes the terms of two quads such bytes, where they lie. */
static inline void v_narrow_terms(term *p)
{
    __m128i terms = _mm_loadu_si128((const __m128i *)(const void *)p);
    terms = _mm_shufflehi_epi16(_mm_shufflelo_epi16(terms, 0xd8), 0xd8);
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(terms, terms));
}

/* Tiles of rounded rows: half of the quads that are ready, and of numbers of a row, at a time. */
#define HAS_HALVES 1
typedef __m256i v_half;

static inline v_half v_load_half(const code *p, const int i)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(p + 16 * i));
}

static inline v_half v_load_half_four(const term *p, const int i)
{
    return v_load_pair(p + 2 * i);
}

static inline v_half v_load_half_bytes(const int8_t *p, const int i)
{
    return v_load_pair((const term *)(const void *)(p + ATTN_QUAD * i));
}

static inline v_dots v_add_half(v_dots sum, v_half w, v_half x)
{
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
    __asm__("" : "+x"(sum));
    return sum;
}

/* Compilers would keep what is stored in registers, too. */
static inline void v_keep_stores(void) { __asm__("" : : : "memory"); }

/* Halves of such pairs with sums of 16 bits, of few rows of W. */
static inline v_dots v_add_half_to_shorts(v_dots sum, v_half w, v_half x)
{
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
    __asm__("" : "+x"(sum));
    return sum;
}

static inline v_dots v_add_shorts(v_dots sum, v_dots shorts)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(shorts, _mm256_set1_epi16(1)));
}

/* The same of upper digits, times 256. */
static inline v_dots v_add_upper_shorts(v_dots sum, v_dots shorts)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(shorts, _mm256_set1_epi16(256)));
}
