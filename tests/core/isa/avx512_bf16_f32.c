/* What AVX512-BF16 adds to the functions. */
#if defined(__x86_64__)
#include "isa/avx512_bf16_f32.h"

#include "support/functions.h"

extern const pair_functions functions_avx512_bf16;

/* Pair i of an array. */
static const void *
at(const void *pairs, ptrdiff_t i)
{
    return (const char *)pairs + i * 4;
}

static void
store(void *pairs, ptrdiff_t i, v_pairs a)
{
    v_store_pairs((char *)pairs + i * 4, a);
}

static void
copy_array(const void *pairs, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        store(to, i, v_load_pairs(at(pairs, i)));
    }
}

static void
set1_array(uint32_t pair, void *to)
{
    store(to, 0, v_set1_pair(pair));
}

static void
dot_arrays(const void *a, const void *b, const float *sum, float *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_pairs x = v_load_pairs(at(a, i)), y = v_load_pairs(at(b, i));
        v_store(to + i, v_dot_pairs(x, y, v_load(sum + i)));
    }
}

static void
pair_arrays(const float *low, const float *high, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        store(to, i, v_pair(v_load(low + i), v_load(high + i)));
    }
}

static void
round_array(const float *from, uint16_t *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += 4 * LANES) {
        v_store_rounded(to + i, v_load(from + i));
        v_store_rounded(to + i + LANES, v_load(from + i + LANES));
        v_store_two_rounded(to + i + 2 * LANES, v_load(from + i + 2 * LANES),
                            to + i + 3 * LANES, v_load(from + i + 3 * LANES));
    }
}

static void
zip_arrays(const uint16_t *low, const uint16_t *high, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        store(to, i, v_zip_bf16(low + i, high + i));
    }
}

static void
transpose(uint32_t *square)
{
    v_pairs a[LANES];

    for (int i = 0; i < LANES; i++) {
        a[i] = v_load_pairs(square + (ptrdiff_t)i * LANES);
    }
    v_transpose_pairs(a);
    for (int i = 0; i < LANES; i++) {
        v_store_pairs(square + (ptrdiff_t)i * LANES, a[i]);
    }
}

const pair_functions functions_avx512_bf16 = {
    .lanes = LANES,
    .copy = copy_array,
    .set1 = set1_array,
    .dot = dot_arrays,
    .pair = pair_arrays,
    .round = round_array,
    .zip = zip_arrays,
    .transpose = transpose,
};

#include "isa/end.h"
#endif
