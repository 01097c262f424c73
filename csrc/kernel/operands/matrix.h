/* Rows of an array as a matrix of operands for a product: in place, if they are operands there,
 * or copied into a slab. */
#ifndef ATTN_KERNEL_OPERANDS_MATRIX_H
#define ATTN_KERNEL_OPERANDS_MATRIX_H

#include "kernel/operands/operand.h"

typedef struct {
    const operand *at;
    ptrdiff_t row; /* operands from row to row; columns are contiguous */
} matrix;

/* Can products read rows of `dim` columns in place, as `kind` says? */
static bool
reads_in_place(const attn_array *array, ptrdiff_t dim, storage kind)
{
    ptrdiff_t size = attn_storage_of(array->dtype)->bytes;

    return (array->column_stride == size || dim == 1) &&
           (kind != AS_OPERANDS ||
            (array->dtype == OPERAND_DTYPE && dim % TERMS == 0 &&
             ((uintptr_t)array->data | (uintptr_t)array->row_stride) %
                     sizeof(operand) ==
                 0));
}

/* n_columns columns of n rows of an array from an address on; TERMS rows make one row of
 * operands. In place if they are operands there, or copied into the slab, where rows are `width`
 * long and 0 beyond the columns. The array has dim columns. */
static matrix
fetch_rows(const attn_array *array, const char *from, ptrdiff_t n, ptrdiff_t dim,
           ptrdiff_t n_columns, ptrdiff_t width, operand *slab)
{
    if (TERMS == 1 && width == n_columns && reads_in_place(array, dim, AS_OPERANDS)) {
        return (matrix){(const operand *)(const void *)from,
                        array->row_stride / (ptrdiff_t)sizeof(operand)};
    }
    for (ptrdiff_t j = 0; j < n; j += TERMS, from += TERMS * array->row_stride) {
        operand *to = slab + j / TERMS * width;
        stage_rows(to, from, j + 1 < n ? from + array->row_stride : NULL,
                   array->column_stride, n_columns, array->dtype);
        if (width > n_columns) {
            memset(to + n_columns, 0, (size_t)(width - n_columns) * sizeof(operand));
        }
    }
    return (matrix){slab, width};
}

/* sum += operands of two rows, times 0; a sum waits for the one before, so each row has its own. */
static INLINE void
add_zeros_of(v_real sum[2], const operand *row, const operand *other)
{
    sum[0] = v_dot(v_load_operands(row), v_set1_operand(0), sum[0]);
    sum[1] = v_dot(v_load_operands(other), v_set1_operand(0), sum[1]);
}

/* Are rows j .. end - 1 finite? x * 0 is 0 for finite x only. */
static NOINLINE bool
all_finite(matrix rows, ptrdiff_t dim, ptrdiff_t j, ptrdiff_t end)
{
    v_real sum[2] = {v_set1(0), v_set1(0)}, more[2] = {v_set1(0), v_set1(0)};

    for (; j < end; j += 2) {
        const operand *row = rows.at + j * rows.row;
        const operand *other = j + 1 < end ? row + rows.row : row;
        ptrdiff_t d = 0;
        for (; d + 2 * LANES <= dim; d += 2 * LANES) {
            add_zeros_of(sum, row + d, other + d);
            add_zeros_of(more, row + d + LANES, other + d + LANES);
        }
        for (; d + LANES <= dim; d += LANES) {
            add_zeros_of(sum, row + d, other + d);
        }
        for (; d < dim; d++) {
            sum[0] = v_dot(v_set1_operand(row[d]), v_set1_operand(0), sum[0]);
            sum[1] = v_dot(v_set1_operand(other[d]), v_set1_operand(0), sum[1]);
        }
    }
    v_real all = v_add(v_add(sum[0], sum[1]), v_add(more[0], more[1]));
    return v_bits_of(v_is_nan(all)) == 0;
}

#endif
