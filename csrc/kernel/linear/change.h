/* A row of outputs changed by a row of any dtype and stride. */
#ifndef ATTN_KERNEL_LINEAR_CHANGE_H
#define ATTN_KERNEL_LINEAR_CHANGE_H

#include "kernel/convert.h"

/* A vector of a row, multiplied by another or added to it. */
static INLINE void
change_vector(real *row, const real *by, bool multiplies)
{
    v_real a = v_load(row), b = v_load(by);
    v_store(row, multiplies ? v_mul(a, b) : v_add(a, b));
}

/* Multiplies n numbers of a row, SLAB_COLUMNS at most, by those at an address, or adds them.
 * The row has room for whole vectors. */
static NOINLINE void
change_by(real *row, const char *from, ptrdiff_t stride, ptrdiff_t n, attn_dtype dtype,
          bool multiplies)
{
    const real *reals = (const real *)(const void *)from;
    bool plain = dtype == REAL_DTYPE && stride == sizeof(real);
    ptrdiff_t whole = plain ? n / LANES * LANES : 0, left = n - whole;
    real rest[SLAB_COLUMNS];

    for (ptrdiff_t k = 0; k < whole; k += LANES) {
        change_vector(row + k, reals + k, multiplies);
    }
    if (left % LANES > 0) {
        v_store(rest + left / LANES * LANES, v_set1(0));
    }
    load_row(rest, from + whole * stride, stride, left, dtype);
    for (ptrdiff_t k = 0; k < left; k += LANES) {
        change_vector(row + whole + k, rest + k, multiplies);
    }
}

#endif
