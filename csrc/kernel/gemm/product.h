/* What the forms of a product share: C[i][lanes] = the sum over t of A[i][t] * B[t][lanes], each
 * element one chain of fused multiply-adds in ascending t. A is read operand by operand where
 * it lies, B and C by vectors. tiles.h, few_rows.h, many_rows.h and lines.h have a form each, with
 * a loop and a struct of its own; the sums of a loop stay in registers. */
#ifndef ATTN_KERNEL_GEMM_PRODUCT_H
#define ATTN_KERNEL_GEMM_PRODUCT_H

#include "kernel/operands/matrix.h"

/* As fetch_rows with operands along each row, (n, n_columns / TERMS rounded up): A of a product
 * whose terms are along rows. */
static matrix
fetch_lines(const attn_array *array, const char *from, ptrdiff_t n, ptrdiff_t dim,
            ptrdiff_t n_columns, operand *slab)
{
    ptrdiff_t width = (n_columns + TERMS - 1) / TERMS;

    if (reads_in_place(array, dim, AS_OPERANDS)) {
        return (matrix){(const operand *)(const void *)from,
                        array->row_stride / (ptrdiff_t)sizeof(operand)};
    }
    for (ptrdiff_t j = 0; j < n; j++) {
        stage_row(slab + j * width, from + j * array->row_stride, array->column_stride,
                  n_columns, array->dtype);
    }
    return (matrix){slab, width};
}

/* What most forms multiply, and where the result goes: the first field of their structs.
 * The form for many rows has other strides, so it has none of this. */
typedef struct {
    real *c;         /* (rows, vectors * LANES) */
    ptrdiff_t c_row; /* reals from row to row */
    matrix a;        /* (rows, steps), or (steps, rows) where A is transposed */
    const char *b;   /* (steps, vectors * LANES) */
    ptrdiff_t b_row; /* bytes from row to row */
    ptrdiff_t n_rows;
    ptrdiff_t n_steps;
} product;

/* A pointer into A is for several rows, so that all addresses are in registers. */
enum { POINTER_ROWS = 3, MAX_POINTERS = 4 };

/* Sets a[g] to the first operand of row g * per_pointer of A. */
static INLINE void
point_at_rows(const operand **a, const operand *first, ptrdiff_t a_row, const int rows,
              const int per_pointer)
{
    UNROLLED for (int g = 0; g * per_pointer < rows; g++)
    {
        a[g] = first + g * per_pointer * a_row;
        __asm__("" : "+r"(a[g])); /* or compilers add it up again */
    }
}

/* sum = 0. Unrolled, because compilers otherwise clear memory and load the sums from it. */
static INLINE void
clear_sums(v_real *sum, const int n)
{
    UNROLLED for (int k = 0; k < n; k++)
    {
        sum[k] = v_set1(0);
    }
}

/* sum += the products of one step, of n_vec vectors of B and the operands of A at pointers. */
static INLINE void
add_step(v_real *sum, const operand *const *a, ptrdiff_t a_row, const v_operand *x,
         const int rows, const int n_vec, const int per_pointer)
{
    UNROLLED for (int r = 0; r < rows; r++)
    {
        const operand *at = a[r / per_pointer] + r % per_pointer * a_row;
        v_operand y = v_set1_operand(*at);
        UNROLLED for (int v = 0; v < n_vec; v++)
        {
            sum[r * n_vec + v] = v_dot(y, x[v], sum[r * n_vec + v]);
        }
    }
}

/* Continues the sums of the second of two tiles, which has n_steps steps more than the first, from a
 * and b on. A is transposed. */
static INLINE void
add_more_steps(v_real *sum, const product *p, const operand *a, const char *b,
               ptrdiff_t n_steps, const int rows)
{
    for (ptrdiff_t t = 0; t < n_steps; t++) {
        v_operand x[TILE_VECTORS];
        UNROLLED for (int v = 0; v < TILE_VECTORS; v++)
        {
            x[v] = v_load_operands((const operand *)(const void *)b + v * LANES);
        }
        UNROLLED for (int r = 0; r < rows; r++)
        {
            v_operand y = v_set1_operand(a[r]);
            UNROLLED for (int v = 0; v < TILE_VECTORS; v++)
            {
                v_real *to = &sum[(2 * r + 1) * TILE_VECTORS + v];
                *to = v_dot(y, x[v], *to);
            }
        }
        a += p->a.row;
        b += p->b_row;
    }
}

/* Where vector v begins, if tiles are `tile` apart and the vectors of one `vector`. */
static INLINE ptrdiff_t
vector_at(const int v, ptrdiff_t tile, ptrdiff_t vector)
{
    return v / TILE_VECTORS * tile + v % TILE_VECTORS * vector;
}

/* C = sum. Rows of C are c_row reals apart, tiles c_tile. */
static INLINE void
store_sums(const v_real *sum, real *c, ptrdiff_t c_row, ptrdiff_t c_tile,
           const int rows, const int n_vec)
{
    UNROLLED for (int r = 0; r < rows; r++)
    {
        UNROLLED for (int v = 0; v < n_vec; v++)
        {
            v_store(c + r * c_row + vector_at(v, c_tile, LANES), sum[r * n_vec + v]);
        }
    }
}

/* Products come between these two calls, which do nothing here. Functions of the same names in
 * amx/product.h reserve the matrix unit. */
static INLINE void
begin_products(void)
{
}

static INLINE void
end_products(void)
{
}

#endif
