/* Codes of rows: rounding to integers of 16 bits. core/bytes.h says how. */
#ifndef ATTN_KERNEL_BYTES_ROUND_H
#define ATTN_KERNEL_BYTES_ROUND_H

#include "core/bytes.h"
#include "core/limits.h"

_Static_assert(ATTN_CODE_UNIT % (2 * LANES) == 0, "codes are whole vectors");

/* Lane by lane: the largest |x| so far; and NaN if one of them is not finite, else 0. */
typedef struct {
    v_real most, not_finite;
} extent;

/* What turns LANES rows into codes, and codes into numbers. */
typedef struct {
    v_real by, unit, up, back;
} rounding;

static INLINE extent
extent_with(extent e, v_real x)
{
    v_real size = v_max(v_sub(v_set1(0), x), x);
    return (extent){v_max(size, e.most), v_fma(x, v_set1(0), e.not_finite)};
}

static INLINE rounding
rounding_of(v_real most, v_real largest)
{
    v_mask tiny = v_less(most, v_set1(0x1p-100F));
    v_real up = v_select(tiny, v_set1(0x1p100F), v_set1(1));
    most = v_mul(most, up);
    v_real by = v_div(largest, most);

    return (rounding){
        .by = v_select(v_less(v_set1(0), most), by, v_set1(0)),
        .unit = v_div(most, largest),
        .up = up,
        .back = v_select(tiny, v_set1(0x1p-100F), v_set1(1)),
    };
}

/* A number before it becomes an integer. */
static INLINE v_real
scaled(v_real x, const rounding *r)
{
    return v_mul(v_mul(x, r->up), r->by);
}

/* The same for one row; CPUs divide two numbers faster than two vectors. */
static INLINE rounding
rounding_of_row(float most, float largest, float *unit, float *back)
{
    const bool tiny = most < 0x1p-100F;
    const float up = tiny ? 0x1p100F : 1;

    most *= up;
    *unit = most / largest;
    *back = tiny ? 0x1p-100F : 1;
    return (rounding){.by = v_set1(most > 0 ? largest / most : 0), .up = v_set1(up)};
}

static bool
round_row(const float *x, ptrdiff_t n, float largest, void *to, float *unit,
          float *back)
{
    extent e = {v_set1(0), v_set1(0)};
    char *codes = to;

    for (ptrdiff_t k = 0; k < n; k += LANES) {
        e = extent_with(e, v_load(x + k));
    }
    if (v_bits_of(v_is_nan(e.not_finite)) != 0) {
        *unit = 0, *back = 1;
        return false;
    }
    const rounding r = rounding_of_row(v_reduce_max(e.most), largest, unit, back);
    for (ptrdiff_t k = 0; k < n; k += LANES) {
        v_store_codes(codes + k * 2, scaled(v_load(x + k), &r));
    }
    return true;
}

/* Finds the largest |x| of lanes. */
static uint64_t
find_lanes(const float *x, ptrdiff_t n, ptrdiff_t line, int n_lanes, float *most)
{
    uint64_t uncoded = 0;

    for (int v = 0; v < n_lanes; v += LANES) {
        extent e = {v_set1(0), v_set1(0)};
        for (ptrdiff_t k = 0; k < n; k++) {
            e = extent_with(e, v_load(x + k * line + v));
        }
        v_mask is_not_finite = v_is_nan(e.not_finite);
        v_store(most + v, v_select(is_not_finite, v_set1(0), e.most));
        uncoded |= v_bits_of(is_not_finite) << v;
    }
    return uncoded;
}

/* Pairs of codes take the place of lines that have been read. */
static INLINE void
round_pairs(float *x, ptrdiff_t n, ptrdiff_t line, const rounding *r)
{
    for (ptrdiff_t k = 0; k < n; k += 2) {
        const float *low = x + k * line;
        v_real second = k + 1 < n ? v_load(low + line) : v_set1(0);
        v_store_code_pairs(x + k / 2 * line, scaled(v_load(low), r), scaled(second, r));
    }
}

#endif
