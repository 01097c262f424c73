/* Moves what AMX multiplies and adds up between rows and lanes, and has what attention with it needs
 * of AVX512-BF16 besides. */

/* a without the whole numbers up to it: 0 <= a - floor(a) < 1, and 0 for infinite ones. */
static inline v_real u_fraction(v_real a)
{
    return _mm512_reduce_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

/* The even and the odd terms of pairs. */
static inline v_real u_even(v_pairs a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
}

static inline v_real u_odd(v_pairs a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000)));
}

/* Between these two vectors round as tiles do: subnormal numbers count as 0. What is computed there
 * is read from memory after the one and stored before the other, or compilers may move it. */
static inline uint32_t u_flush(void)
{
    const uint32_t before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    u_publish(NULL);
    return before;
}

static inline void u_keep(uint32_t before)
{
    u_publish(NULL);
    _mm_setcsr(before);
}

/* rows[r] has element r of each of LANES rows of LANES floats. */
static inline void u_transpose_four(const float *at, v_real rows[4])
{
    v_real t[4];

    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_castps128_ps512(_mm_loadu_ps(at + i * LANES));
        for (int part = 1; part < 4; part++) {
            __m128 four = _mm_loadu_ps(at + (4 * part + i) * LANES);
            t[i] = _mm512_mask_broadcast_f32x4(t[i], (v_mask)(15 << 4 * part), four);
        }
    }
    __m512d low0 = _mm512_castps_pd(_mm512_unpacklo_ps(t[0], t[1]));
    __m512d low1 = _mm512_castps_pd(_mm512_unpacklo_ps(t[2], t[3]));
    __m512d high0 = _mm512_castps_pd(_mm512_unpackhi_ps(t[0], t[1]));
    __m512d high1 = _mm512_castps_pd(_mm512_unpackhi_ps(t[2], t[3]));
    rows[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low0, low1));
    rows[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low0, low1));
    rows[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high0, high1));
    rows[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high0, high1));
}

/* Lane i is element u_zip_element(i) of either of two rows of 32, or, high, the one 4 behind it:
 * what one instruction does. */
static inline v_pairs u_zip(const uint16_t *low, const uint16_t *up, const bool high)
{
    __m512i a = _mm512_loadu_si512(low), b = _mm512_loadu_si512(up);
    return high ? _mm512_unpackhi_epi16(a, b) : _mm512_unpacklo_epi16(a, b);
}

static inline int u_zip_element(int i) { return i / 4 * 8 + i % 4; }

/* Elements in the order of a row, from the floats in low and high lanes of u_zip. */
static inline void u_unzip(v_real *low, v_real *high)
{
    const v_real first = _mm512_shuffle_f32x4(*low, *high, 0x44);
    const v_real last = _mm512_shuffle_f32x4(*low, *high, 0xee);

    *low = _mm512_shuffle_f32x4(first, first, 0xd8);
    *high = _mm512_shuffle_f32x4(last, last, 0xd8);
}

/* Numbers in the order of a row, from the even and the odd ones. */
static inline void u_weave(v_real *even, v_real *odd)
{
    const __m512i first =
        _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const v_real low = _mm512_permutex2var_ps(*even, first, *odd);

    *odd = _mm512_permutex2var_ps(*even, last, *odd);
    *even = low;
}
