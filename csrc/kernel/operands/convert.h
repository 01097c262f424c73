/* Between rows of any dtype and stride and contiguous rows of reals. Nothing is read or
 * written outside the elements that are given. */
#ifndef ATTN_KERNEL_OPERANDS_CONVERT_H
#define ATTN_KERNEL_OPERANDS_CONVERT_H

#include "core/array.h"
#include "core/half.h"
#include "kernel/sizes.h"
#include <string.h>

/* One element of any dtype, as a real. */
static real
load_element(const char *from, attn_dtype dtype)
{
    int8_t byte;
    int16_t code;
    uint16_t half;
    float single;
    double wide;

    switch (dtype) {
    case ATTN_I8: memcpy(&byte, from, sizeof byte); return byte;
    case ATTN_I16: memcpy(&code, from, sizeof code); return code;
    case ATTN_F16: memcpy(&half, from, sizeof half); return attn_from_f16(half);
    case ATTN_BF16: memcpy(&half, from, sizeof half); return attn_from_bf16(half);
    case ATTN_F32: memcpy(&single, from, sizeof single); return (real)single;
    case ATTN_F64: break;
    }
    memcpy(&wide, from, sizeof wide);
    return (real)wide;
}

/* Are vectors of reals loaded from adjacent elements of a dtype? Others come one by one. */
static bool
has_vectors(attn_dtype dtype)
{
    return dtype == REAL_DTYPE || attn_is_half(dtype) || dtype == ATTN_I8;
}

/* LANES adjacent numbers of 16 bits. */
static INLINE v_real
load_half(const uint16_t *from, attn_dtype dtype)
{
    return dtype == ATTN_F16 ? v_load_f16(from) : v_load_bf16(from);
}

/* LANES adjacent elements of a dtype that has vectors. */
static INLINE v_real
load_vector(const char *from, attn_dtype dtype)
{
    return attn_is_half(dtype) ? load_half((const uint16_t *)(const void *)from, dtype)
           : dtype == ATTN_I8  ? v_load_i8((const int8_t *)from)
                               : v_load((const real *)(const void *)from);
}

/* to[k] = element k of n at from, stride bytes apart */
static void
load_row(real *to, const char *from, ptrdiff_t stride, ptrdiff_t n, attn_dtype dtype)
{
    ptrdiff_t k = 0;

    if (dtype == REAL_DTYPE && stride == sizeof(real)) {
        memcpy(to, from, (size_t)n * sizeof(real));
        return;
    }
    if (attn_is_half(dtype) && stride == sizeof(uint16_t)) {
        const uint16_t *half = (const uint16_t *)(const void *)from;
        for (; k + LANES <= n; k += LANES) {
            v_store(to + k, load_half(half + k, dtype));
        }
    }
    for (; dtype == ATTN_I8 && stride == 1 && k + LANES <= n; k += LANES) {
        v_store(to + k, v_load_i8((const int8_t *)from + k));
    }
    for (; dtype == REAL_DTYPE && k < n; k++) {
        ONE_BY_ONE; /* and without a switch for each */
        memcpy(&to[k], from + k * stride, sizeof(real));
    }
    for (; k < n; k++) {
        ONE_BY_ONE;
        to[k] = load_element(from + k * stride, dtype);
    }
}

static void
store_element(char *to, real x, attn_dtype dtype)
{
    float single = (float)x;
    double wide = (double)x;
    int8_t byte;
    int16_t code;
    uint16_t half;

    switch (dtype) {
    case ATTN_I8: byte = attn_to_i8(single), memcpy(to, &byte, sizeof byte); break;
    case ATTN_I16: /* x is whole */
        code = (int16_t)single, memcpy(to, &code, sizeof code);
        break;
    case ATTN_F16: half = attn_to_f16(single), memcpy(to, &half, sizeof half); break;
    case ATTN_BF16: half = attn_to_bf16(single), memcpy(to, &half, sizeof half); break;
    case ATTN_F32: memcpy(to, &single, sizeof single); break;
    case ATTN_F64: memcpy(to, &wide, sizeof wide); break;
    }
}

#if REAL_BITS == 32
/* The reverse of load_half. */
static INLINE void
store_half(uint16_t *to, v_real x, attn_dtype dtype)
{
    if (dtype == ATTN_F16) {
        v_store_f16(to, x);
    } else {
        v_store_bf16(to, x);
    }
}
#endif

/* The reverse of load_row. */
static ONE_COPY void
store_row(char *to, ptrdiff_t stride, const real *from, ptrdiff_t n, attn_dtype dtype)
{
    ptrdiff_t k = 0;

    if (dtype == REAL_DTYPE && stride == sizeof(real)) {
        memcpy(to, from, (size_t)n * sizeof(real));
        return;
    }
#if REAL_BITS == 32
    if (attn_is_half(dtype) && stride == sizeof(uint16_t)) {
        uint16_t *half = (uint16_t *)(void *)to;
        for (; k + LANES <= n; k += LANES) {
            store_half(half + k, v_load(from + k), dtype);
        }
    }
#endif
    for (; k < n; k++) {
        ONE_BY_ONE;
        store_element(to + k * stride, from[k], dtype);
    }
}

/* Are these columns contiguous reals? */
static bool
is_plain(const attn_array *array, ptrdiff_t n_columns)
{
    return array->dtype == REAL_DTYPE &&
           (array->column_stride == sizeof(real) || n_columns == 1);
}

#endif
