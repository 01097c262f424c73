/* Tiles of many rounded rows cross wide codes with AVX2: (x0 + w1) * (x1 + w0) is x0 * w0 + x1 * w1,
 * and x0 * x1 and w0 * w1, which are each one's own (Winograd, 1968). Half as many products take more
 * sums, but CPUs add twice as many vectors at a time as they multiply. */
#define HAS_CROSSED 1

static inline v_dots v_add_crossed(v_dots sum, v_quads w, v_four x)
{
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(x.even, w.odd),
                                                  _mm256_add_epi16(x.odd, w.even)));
    __asm__("" : "+x"(sum));
    return sum;
}

/* Less what columns have of their own. */
static inline v_dots v_subtract_own(v_dots sum, v_quads w)
{
    return _mm256_sub_epi32(sum, _mm256_madd_epi16(w.even, w.odd));
}

/* The same of n terms of a row, a multiple of 16. */
static inline int32_t v_own_of_terms(const term *p, ptrdiff_t n)
{
    __m256i twice = _mm256_setzero_si256();
    for (ptrdiff_t k = 0; k < n; k += 16) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(p + k));
        __m256i products = _mm256_madd_epi16(x, _mm256_shuffle_epi32(x, 0xb1));
        twice = _mm256_add_epi32(twice, products);
    }
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(twice),
                                _mm256_extracti128_si256(twice, 1));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e)));
}

static inline v_dots v_begin_crossed(int32_t begin, const int32_t *p)
{
    return _mm256_add_epi32(_mm256_set1_epi32(begin),
                            _mm256_loadu_si256((const __m256i *)(const void *)p));
}
