/* Fills in FUNCTIONS, of the tier TIER, from the vocabulary of an isa header of csrc/. The
 * files of isa/ choose all three, then include this. */
#ifndef ATTN_TESTS_FUNCTIONS_TABLE_H
#define ATTN_TESTS_FUNCTIONS_TABLE_H

#include "kernel/operands/convert.h"
#include "kernel/math/log.h"
#include "kernel/math/exp.h"
#include "support/functions.h"

extern const functions FUNCTIONS;

static void
exp_array(const void *x, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_store((real *)to + i, exp_of(v_load((const real *)x + i)));
    }
}

static void
tanh_array(const void *x, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_store((real *)to + i, tanh_of(v_load((const real *)x + i)));
    }
}

static void
round_array(const void *x, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_store((real *)to + i, v_round(v_load((const real *)x + i)));
    }
}

static void
log_lanes_array(const void *x, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_store((real *)to + i, log_lanes(v_load((const real *)x + i)));
    }
}

static void
exponent_array(const void *x, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_store((real *)to + i, v_exponent(v_load((const real *)x + i)));
    }
}

static void
quiet_nan_or_array(const void *x, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_store((real *)to + i, quiet_nan_or(v_load((const real *)x + i)));
    }
}

static void
log_array(const double *x, double *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        to[i] = log_of(x[i]);
    }
}

static void
add_arrays(const void *x, const void *y, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_real a = v_load((const real *)x + i), b = v_load((const real *)y + i);
        v_store((real *)to + i, v_add(a, b));
    }
}

static void
sub_arrays(const void *x, const void *y, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_real a = v_load((const real *)x + i), b = v_load((const real *)y + i);
        v_store((real *)to + i, v_sub(a, b));
    }
}

static void
mul_arrays(const void *x, const void *y, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_real a = v_load((const real *)x + i), b = v_load((const real *)y + i);
        v_store((real *)to + i, v_mul(a, b));
    }
}

static void
div_arrays(const void *x, const void *y, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_real a = v_load((const real *)x + i), b = v_load((const real *)y + i);
        v_store((real *)to + i, v_div(a, b));
    }
}

static void
max_arrays(const void *x, const void *y, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_real a = v_load((const real *)x + i), b = v_load((const real *)y + i);
        v_store((real *)to + i, v_max(a, b));
    }
}

static void
scale2_arrays(const void *x, const void *y, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_real a = v_load((const real *)x + i), b = v_load((const real *)y + i);
        v_store((real *)to + i, v_scale2(a, b));
    }
}

static void
fma_arrays(const void *x, const void *y, const void *z, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_real a = v_load((const real *)x + i), b = v_load((const real *)y + i);
        v_store((real *)to + i, v_fma(a, b, v_load((const real *)z + i)));
    }
}

static void
fms_arrays(const void *x, const void *y, const void *z, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_real a = v_load((const real *)x + i), b = v_load((const real *)y + i);
        v_store((real *)to + i, v_fms(a, b, v_load((const real *)z + i)));
    }
}

static uint64_t
mask_and_back(uint64_t bits)
{
    return v_bits_of(v_mask_of(bits));
}

static uint64_t
less_bits(const void *x, const void *y)
{
    return v_bits_of(v_less(v_load(x), v_load(y)));
}

static uint64_t
is_nan_bits(const void *x)
{
    return v_bits_of(v_is_nan(v_load(x)));
}

static void
select_lanes(uint64_t bits, const void *yes, const void *no, void *to)
{
    v_store(to, v_select(v_mask_of(bits), v_load(yes), v_load(no)));
}

static void
reduce_max(const void *x, void *to)
{
    *(real *)to = v_reduce_max(v_load(x));
}

#if REAL_BITS == 32
static void
reduce_add(const void *x, void *to)
{
    *(real *)to = v_reduce_add(v_load(x));
}
#endif

static void
transpose(void *square)
{
    v_real a[LANES];

    for (int i = 0; i < LANES; i++) {
        a[i] = v_load((const real *)square + (ptrdiff_t)i * LANES);
    }
    v_transpose(a);
    for (int i = 0; i < LANES; i++) {
        v_store((real *)square + (ptrdiff_t)i * LANES, a[i]);
    }
}

#if LOADS_COLUMNS
static void
load_columns(void *square)
{
    v_real a[LANES];
    const real *rows[LANES];

    for (int i = 0; i < LANES; i++) {
        rows[i] = (const real *)square + (ptrdiff_t)i * LANES;
    }
    v_load_columns(a, rows);
    for (int i = 0; i < LANES; i++) {
        v_store((real *)square + (ptrdiff_t)i * LANES, a[i]);
    }
}
#endif

#if LOADS_BF16_COLUMNS
static void
load_bf16_columns(const uint16_t *square, void *to)
{
    v_real a[LANES];

    v_load_bf16_columns(a, (const char *)square, LANES * sizeof *square);
    for (int i = 0; i < LANES; i++) {
        v_store((real *)to + (ptrdiff_t)i * LANES, a[i]);
    }
}
#endif

#if TAKES_TWO_PANELS
static void
load_bf16_pairs(const uint16_t *pairs, void *to)
{
    v_real a[2];

    v_load_bf16_pairs(a, (const char *)pairs);
    v_store((real *)to, a[0]);
    v_store((real *)to + LANES, a[1]);
}
#endif

static void
load_f16_array(const uint16_t *from, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_store((real *)to + i, v_load_f16(from + i));
    }
}

static void
load_bf16_array(const uint16_t *from, void *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_store((real *)to + i, v_load_bf16(from + i));
    }
}

#if REAL_BITS == 32
static void
store_f16_array(const void *from, uint16_t *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_store_f16(to + i, v_load((const real *)from + i));
    }
}

static void
store_bf16_array(const void *from, uint16_t *to, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        v_store_bf16(to + i, v_load((const real *)from + i));
    }
}
#endif

static void
load_any_row(void *to, const char *from, ptrdiff_t stride, ptrdiff_t n,
             attn_dtype dtype)
{
    load_row(to, from, stride, n, dtype);
}

static void
store_any_row(char *to, ptrdiff_t stride, const void *from, ptrdiff_t n,
              attn_dtype dtype)
{
    store_row(to, stride, from, n, dtype);
}

const functions FUNCTIONS = {
    .tier = TIER,
    .bits = REAL_BITS,
    .lanes = LANES,
    .exp = exp_array,
    .tanh = tanh_array,
    .log_lanes = log_lanes_array,
    .round = round_array,
    .exponent = exponent_array,
    .quiet_nan_or = quiet_nan_or_array,
    .log = log_array,
    .add = add_arrays,
    .sub = sub_arrays,
    .mul = mul_arrays,
    .div = div_arrays,
    .max = max_arrays,
    .scale2 = scale2_arrays,
    .fma = fma_arrays,
    .fms = fms_arrays,
    .mask = mask_and_back,
    .less = less_bits,
    .is_nan = is_nan_bits,
    .select = select_lanes,
    .reduce_max = reduce_max,
    .transpose = transpose,
#if LOADS_COLUMNS
    .load_columns = load_columns,
#endif
#if LOADS_BF16_COLUMNS
    .load_bf16_columns = load_bf16_columns,
#endif
#if TAKES_TWO_PANELS
    .load_bf16_pairs = load_bf16_pairs,
#endif
    .load_f16 = load_f16_array,
    .load_bf16 = load_bf16_array,
#if REAL_BITS == 32
    .reduce_add = reduce_add,
    .store_f16 = store_f16_array,
    .store_bf16 = store_bf16_array,
#endif
    .load_row = load_any_row,
    .store_row = store_any_row,
};

#endif
