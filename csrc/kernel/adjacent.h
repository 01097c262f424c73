/* What of rows is in vectors already: rows whose columns are adjacent operands, or rows that lie
 * beside each other, so that they are in lanes, as those of a transposed array. */
#ifndef ATTN_KERNEL_ADJACENT_H
#define ATTN_KERNEL_ADJACENT_H

#include "kernel/convert.h"
#include "kernel/operand.h"

/* Do columns of an array's rows lie as operands do, pairs in whole vectors? */
static bool
are_operands(const attn_array *array, ptrdiff_t n_columns)
{
    return TERMS == 1 ? is_plain(array, n_columns)
                      : array->dtype == OPERAND_DTYPE &&
                            array->column_stride == (ptrdiff_t)sizeof(real) / TERMS &&
                            n_columns % (TERMS * LANES) == 0;
}

/* Do these n rows lie beside each other, as many as there are lanes, of a dtype that vectors are
 * loaded from? */
static bool
are_adjacent(const attn_array *array, const char *const rows[LANES], ptrdiff_t n)
{
    ptrdiff_t size = attn_storage_of(array->dtype)->bytes;

    return TERMS == 1 && LANES > 1 && n == LANES &&
           rows[LANES - 1] == rows[0] + (LANES - 1) * size &&
           array->row_stride == size &&
           (array->dtype == REAL_DTYPE || attn_is_half(array->dtype));
}

static INLINE v_real
load_vector(const char *from, attn_dtype dtype)
{
    const uint16_t *half = (const uint16_t *)(const void *)from;

    return dtype == ATTN_F16    ? v_load_f16(half)
           : dtype == ATTN_BF16 ? v_load_bf16(half)
                                : v_load((const real *)(const void *)from);
}

/* to[k][lane] = column k of row `lane` of such rows, times *scale unless that is NULL. */
static void
load_adjacent(const attn_array *array, const char *rows, ptrdiff_t n_columns, real *to,
              const real *scale)
{
    for (ptrdiff_t k = 0; k < n_columns; k++, rows += array->column_stride) {
        v_real x = load_vector(rows, array->dtype);
        v_store(to + k * WIDTH, scale == NULL ? x : v_mul(x, v_set1(*scale)));
    }
}

#endif
