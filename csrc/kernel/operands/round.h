/* Rounding reals to a storage type in place, as if they had been stored. */
#ifndef ATTN_KERNEL_OPERANDS_ROUND_H
#define ATTN_KERNEL_OPERANDS_ROUND_H

#include "kernel/operands/convert.h"
#include <math.h>

#if REAL_BITS == 64
/* A float on the number's side of every tie between halves. */
static float
round_to_odd(double x)
{
    float single = (float)x;
    uint32_t bits = attn_bits_from_float(single);

    if (fabs((double)single) > fabs(x)) {
        bits--; /* toward zero */
    }
    return attn_float_from_bits(bits | ((double)attn_float_from_bits(bits) != x));
}
#endif

/* Rounds to float, which halves are then rounded from. Float16 is rounded once, bfloat16
 * twice, as NumPy and ml_dtypes do. */
static void
round_to_float(real *row, ptrdiff_t n, attn_dtype dtype)
{
#if REAL_BITS == 64
    for (ptrdiff_t k = 0; k < n; k++) {
        ONE_BY_ONE;
        row[k] = (double)(dtype == ATTN_F16 ? round_to_odd(row[k]) : (float)row[k]);
    }
#else
    (void)row, (void)n, (void)dtype;
#endif
}

/* Rounds n reals to a dtype, unless it holds them all. */
static NOINLINE void
round_row(real *row, ptrdiff_t n, attn_dtype dtype, char *halves)
{
    ptrdiff_t bytes = attn_storage_of(dtype)->bytes;

    if (bytes >= (ptrdiff_t)sizeof(real)) {
        return;
    }
    round_to_float(row, n, dtype);
    if (bytes < (ptrdiff_t)sizeof(float)) {
        store_row(halves, bytes, row, n, dtype);
        load_row(row, halves, bytes, n, dtype);
    }
}

#endif
