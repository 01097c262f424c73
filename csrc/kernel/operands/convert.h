/* Between rows of any dtype and stride and contiguous rows of reals. Nothing is read or
 * written outside the elements that are given. */
#ifndef ATTN_KERNEL_OPERANDS_CONVERT_H
#define ATTN_KERNEL_OPERANDS_CONVERT_H

#include "core/array.h"
#include "core/half.h"
#include "kernel/sizes.h"
#include <string.h>

/* How operands lie in memory: as such, or as elements that loading converts. */
typedef enum { AS_OPERANDS, AS_F16, AS_BF16, AS_TWO_ROWS } storage;

/* One element of any dtype as a real. */
static real
load_element(const char *from, attn_dtype dtype)
{
    uint16_t half;
    float single;
    double wide;

    switch (dtype) {
    case ATTN_F16: memcpy(&half, from, sizeof half); return attn_from_f16(half);
    case ATTN_BF16: memcpy(&half, from, sizeof half); return attn_from_bf16(half);
    case ATTN_F32: memcpy(&single, from, sizeof single); return (real)single;
    default: memcpy(&wide, from, sizeof wide); return (real)wide;
    }
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
            bool f16 = dtype == ATTN_F16;
            v_store(to + k, f16 ? v_load_f16(half + k) : v_load_bf16(half + k));
        }
    }
    for (; k < n; k++) {
        ONE_BY_ONE;
        to[k] = load_element(from + k * stride, dtype);
    }
}

static void
store_element(char *to, real x, attn_dtype dtype)
{
    uint16_t half = dtype == ATTN_F16 ? attn_to_f16((float)x) : attn_to_bf16((float)x);
    float single = (float)x;
    double wide = (double)x;

    switch (dtype) {
    case ATTN_F32: memcpy(to, &single, sizeof single); break;
    case ATTN_F64: memcpy(to, &wide, sizeof wide); break;
    default: memcpy(to, &half, sizeof half); break;
    }
}

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
            if (dtype == ATTN_F16) {
                v_store_f16(half + k, v_load(from + k));
            } else {
                v_store_bf16(half + k, v_load(from + k));
            }
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
