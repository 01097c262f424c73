/* What AVX2 adds to the vocabulary of float: columns and pairs of bfloat16 numbers. */

/* The lower and the upper numbers of LANES pairs. */
static INLINE void v_split_bf16_pairs(v_real a[2], __m256i pairs)
{
    __m256i upper = _mm256_and_si256(pairs, _mm256_set1_epi32(-0x10000));

    a[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    a[1] = _mm256_castsi256_ps(upper);
}

/* The same of pairs that lie beside each other. */
static INLINE void v_load_bf16_pairs(v_real a[2], const char *at)
{
    v_split_bf16_pairs(a, _mm256_loadu_si256((const __m256i *)(const void *)at));
}

/* a[k] = column k of LANES rows, `row` bytes apart. A pair of columns is transposed as a column of
 * floats, whose halves are then told apart: half as many shuffles. */
static INLINE void v_load_bf16_columns(v_real a[LANES], const char *at, ptrdiff_t row)
{
    const char *second = at + 4 * row;
    v_real pair[4];

    __asm__("" : "+r"(at), "+r"(second)); /* or each row has an address */
    UNROLLED for (int i = 0; i < 4; i++)
    {
        const void *from = at + i * row, *upper = second + i * row;
        __m128i low = _mm_loadu_si128((const __m128i *)from);
        __m128i high = _mm_loadu_si128((const __m128i *)upper);
        pair[i] = _mm256_castsi256_ps(_mm256_setr_m128i(low, high));
    }
    v_transpose_halves(pair);
    UNROLLED for (int i = 0; i < 4; i++)
    {
        v_split_bf16_pairs(a + 2 * i, _mm256_castps_si256(pair[i]));
    }
}
