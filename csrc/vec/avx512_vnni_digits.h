/* The vocabulary of products of digits and bytes with AVX512-VNNI, beside that of shorts:
 * kernel/bytes/digits.h and kernel/bytes/quarters.h. */
#include <immintrin.h>
#include <stdint.h>

static inline v_sums v_add_quads(v_sums sum, v_shorts unsigned_bytes, v_shorts bytes)
{
    sum = _mm512_dpbusd_epi32(sum, unsigned_bytes, bytes);
    __asm__("" : "+v"(sum)); /* as in v_add_pairs */
    return sum;
}

static inline v_sums v_join_digits(v_sums high, v_sums low)
{
    return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

static inline v_sums v_less_sums(v_sums a, v_sums b) { return _mm512_sub_epi32(a, b); }

static inline v_shorts v_add_128(v_shorts bytes)
{
    return _mm512_xor_si512(bytes, _mm512_set1_epi8(-128));
}

/* Four codes that are not negative become their four high digits and their four low ones. */
static inline v_shorts v_split_unsigned(v_shorts codes)
{
    const __m512i order = _mm512_broadcast_i32x4(
        _mm_setr_epi8(1, 3, 5, 7, 0, 2, 4, 6, 9, 11, 13, 15, 8, 10, 12, 14));
    return _mm512_shuffle_epi8(codes, order);
}

/* Signed digits of any codes: 128 more makes a low digit unsigned, and the high one what it has to
 * be. */
static inline v_shorts v_split(v_shorts codes)
{
    const __m512i low = _mm512_set1_epi64((int64_t)(UINT64_C(0x80808080) << 32));
    codes = _mm512_add_epi16(codes, _mm512_set1_epi16(128));
    return _mm512_xor_si512(v_split_unsigned(codes), low);
}

static inline bool v_has_negative(v_shorts a) { return _mm512_movepi16_mask(a) != 0; }

/* Codes of two rows of numbers side by side, with 128 more. */
static inline __m512i v_two_codes(v_real a, v_real b)
{
    __m512i second = _mm512_slli_epi32(_mm512_cvtps_epi32(b), 16);
    __m512i codes = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_cvtps_epi32(a), second);
    return _mm512_add_epi16(codes, _mm512_set1_epi16(128));
}

static inline void v_store_digits(void *high, void *low, const v_real x[4])
{
    const __mmask64 odd = UINT64_C(0xaaaaaaaaaaaaaaaa);
    __m512i a = v_two_codes(x[0], x[2]), b = v_two_codes(x[1], x[3]);
    _mm512_storeu_si512(high, _mm512_mask_blend_epi8(odd, _mm512_srli_epi16(a, 8), b));
    a = _mm512_mask_blend_epi8(odd, a, _mm512_slli_epi16(b, 8));
    _mm512_storeu_si512(low, v_add_128(a));
}

/* Half h of the vector m that is stored then has columns 16 h + 4 m to 16 h + 4 m + 3. */
static inline void v_store_quads(void *p, const v_narrow x[4])
{
    __m256i *to = (__m256i *)p;
    __m256i low = _mm256_unpacklo_epi8(x[0], x[1]),
            low2 = _mm256_unpacklo_epi8(x[2], x[3]);
    __m256i high = _mm256_unpackhi_epi8(x[0], x[1]);
    __m256i high2 = _mm256_unpackhi_epi8(x[2], x[3]);
    _mm256_storeu_si256(to, _mm256_unpacklo_epi16(low, low2));
    _mm256_storeu_si256(to + 1, _mm256_unpackhi_epi16(low, low2));
    _mm256_storeu_si256(to + 2, _mm256_unpacklo_epi16(high, high2));
    _mm256_storeu_si256(to + 3, _mm256_unpackhi_epi16(high, high2));
}

/* The high digits of NARROW codes, and the low ones. */
static inline v_narrow v_high_digits(v_shorts codes)
{
    codes = _mm512_add_epi16(codes, _mm512_set1_epi16(128));
    return _mm512_cvtepi16_epi8(_mm512_srli_epi16(codes, 8));
}

static inline v_narrow v_low_digits(v_shorts codes)
{
    return _mm512_cvtepi16_epi8(codes);
}

/* Stores the halves of bytes `step` apart. */
static inline void v_store_halves(char *p, ptrdiff_t step, v_narrow a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(a));
    _mm_storeu_si128((__m128i *)(void *)(p + step), _mm256_extracti128_si256(a, 1));
}

/* Four times 16 bytes. */
static inline v_shorts v_load_quarters(const void *p)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
}

/* Quarter j of vector i and quarter i of vector j change places. */
static inline void v_transpose_sum_quarters(v_sums a[4])
{
    v_sums low = _mm512_shuffle_i32x4(a[0], a[1], 0x44);
    v_sums low2 = _mm512_shuffle_i32x4(a[2], a[3], 0x44);
    v_sums high = _mm512_shuffle_i32x4(a[0], a[1], 0xee);
    v_sums high2 = _mm512_shuffle_i32x4(a[2], a[3], 0xee);
    a[0] = _mm512_shuffle_i32x4(low, low2, 0x88);
    a[1] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    a[2] = _mm512_shuffle_i32x4(high, high2, 0x88);
    a[3] = _mm512_shuffle_i32x4(high, high2, 0xdd);
}

/* 64 bytes, in two halves: Zen 4 takes longer for whole vectors at odd multiples of 16. */
static inline v_shorts v_load_two(const int8_t *p)
{
    v_shorts first = _mm512_castsi256_si512(v_load_narrow(p));
    return _mm512_inserti64x4(first, v_load_narrow(p + 2 * LANES), 1);
}

/* Zips the first eight of each 16 of 64 bytes, or the others, of four rows. Quarter q of
 * vector v then has bytes 16 q + 4 v to 16 q + 4 v + 3; the others are vectors 2 and 3. */
static inline void v_zip_eights(v_shorts x[2], const int8_t *const at[4], bool others)
{
    v_shorts a = v_load_two(at[0]), b = v_load_two(at[1]);
    v_shorts c = v_load_two(at[2]), d = v_load_two(at[3]);
    a = others ? _mm512_unpackhi_epi8(a, b) : _mm512_unpacklo_epi8(a, b);
    c = others ? _mm512_unpackhi_epi8(c, d) : _mm512_unpacklo_epi8(c, d);
    x[0] = _mm512_unpacklo_epi16(a, c);
    x[1] = _mm512_unpackhi_epi16(a, c);
}
