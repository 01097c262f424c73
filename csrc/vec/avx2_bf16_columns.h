/* What AVX2 adds to the vocabulary of float: columns of bfloat16 numbers. */

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
        __m256i bits = _mm256_castps_si256(pair[i]);
        __m256i odd = _mm256_and_si256(bits, _mm256_set1_epi32(-0x10000));
        a[2 * i] = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
        a[2 * i + 1] = _mm256_castsi256_ps(odd);
    }
}
