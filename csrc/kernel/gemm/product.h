/* The micro-kernel: C[i][lanes] = the sum over t of A[i][t] * B[t][lanes], each element one
 * chain of fused multiply-adds from 0 in ascending t; or C * keep plus that. A is read
 * operand by operand where it lies, B and C by vectors; accumulators stay in registers for
 * PANEL_ROWS x TILE_VECTORS of C. */
#ifndef ATTN_KERNEL_GEMM_PRODUCT_H
#define ATTN_KERNEL_GEMM_PRODUCT_H

#include "kernel/operands/matrix.h"
#include "kernel/operands/prefetch.h"

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

/* sum = C */
static INLINE void
load_panel(v_real *sum, const real *c, ptrdiff_t c_row, const int rows, const int n_vec)
{
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < n_vec; v++) {
            sum[r * n_vec + v] = v_load(c + r * c_row + v * LANES);
        }
    }
}

/* sum += C * keep */
static INLINE void
add_panel(v_real *sum, const real *c, ptrdiff_t c_row, const int rows, const int n_vec,
          const real *keep)
{
    for (int v = 0; v < n_vec; v++) {
        v_real factor = keep == NULL ? v_set1(1) : v_load(keep + v * LANES);
        for (int r = 0; r < rows; r++) {
            v_real *to = &sum[r * n_vec + v];
            *to = v_fma(v_load(c + r * c_row + v * LANES), factor, *to);
        }
    }
}

/* C = sum */
static INLINE void
store_panel(const v_real *sum, real *c, ptrdiff_t c_row, const int rows,
            const int n_vec)
{
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < n_vec; v++) {
            v_store(c + r * c_row + v * LANES, sum[r * n_vec + v]);
        }
    }
}

typedef struct {
    real *c;         /* (rows, n_vec * LANES) */
    ptrdiff_t c_row; /* reals from row to row */
    matrix a;        /* (rows, steps), or where a_transposed (steps, rows) */
    const char *b;   /* (steps, n_vec * LANES) */
    ptrdiff_t b_row; /* bytes from row to row */
    ptrdiff_t n_rows;
    ptrdiff_t n_steps;
    bool resume;      /* of few rows: the chains that C holds, else begin at 0 */
    bool add;         /* of many: to what C holds, else overwrite it */
    const real *keep; /* with add: what columns of C are multiplied by first; NULL: 1 */
    prefetch next[2]; /* prefetched meanwhile */
    const char *ahead;    /* of whole panels: likewise, line by line, */
    ptrdiff_t ahead_step; /* so many bytes on with each step */
    ptrdiff_t b_ahead;    /* of few rows: prefetched so many bytes before it is read */
    bool b_far;           /* by the second-level cache, not by the first alone */
} product;

/* Of A: rows that lie apart are prefetched; a pointer is for several rows, so that all
 * addresses are in registers. */
enum { STEPS_AHEAD = 8, POINTER_ROWS = 3, MAX_POINTERS = 4 };

/* Rows i .. i + rows - 1 of the product; rows, n_vec and so on are constants to the
 * compiler. */
static INLINE void
multiply_panel(const product *m, ptrdiff_t i, const int rows, const int n_vec,
               const bool a_transposed, const bool few_rows, const storage kind)
{
    const ptrdiff_t vector = LANES * storage_bytes(kind);
    ptrdiff_t a_row = a_transposed ? 1 : m->a.row;
    ptrdiff_t a_step = a_transposed ? m->a.row : 1;
    ptrdiff_t b_step = kind == AS_TWO_ROWS ? 2 * m->b_row : m->b_row;
    const int per_pointer = a_transposed ? rows : POINTER_ROWS;
    const bool prefetches = !few_rows && rows == PANEL_ROWS;
    const char *ahead = prefetches ? m->ahead : NULL;
    const int n_pointers = (rows + per_pointer - 1) / per_pointer;
    const operand *a[MAX_POINTERS];
    const char *b = m->b;
    real *c = m->c + i * m->c_row;
    v_real sum[PANEL_ROWS * TILE_VECTORS];

    for (int g = 0; g < n_pointers; g++) {
        a[g] = m->a.at + (i + g * per_pointer) * a_row;
        __asm__("" : "+r"(a[g])); /* or compilers add it up again */
    }
    for (int k = 0; k < rows * n_vec; k++) {
        sum[k] = v_set1(0);
    }
    if (few_rows && m->resume) {
        load_panel(sum, c, m->c_row, rows, n_vec);
    }
    for (ptrdiff_t t = 0; t < m->n_steps; t++) {
        v_operand x[PANEL_ROWS * TILE_VECTORS];
        for (int v = 0; v < n_vec; v++) {
            x[v] = load_operands(b + v * vector, b + m->b_row + v * vector, kind);
        }
        if (few_rows) {
            prefetch_operands(b + m->b_ahead, m->b_row, n_vec, kind, m->b_far);
        } else if (a_transposed) {
            __builtin_prefetch(a[0] + STEPS_AHEAD * a_step + rows - 1);
        }
        if (prefetches) {
            __builtin_prefetch(ahead, 0, 2);
            ahead += m->ahead_step;
        }
        for (int r = 0; r < rows; r++) {
            const operand *at = a[r / per_pointer] + r % per_pointer * a_row;
            v_operand y = v_set1_operand(*at);
            for (int v = 0; v < n_vec; v++) {
                sum[r * n_vec + v] = v_dot(y, x[v], sum[r * n_vec + v]);
            }
        }
        for (int g = 0; g < n_pointers; g++) {
            a[g] += a_step;
            if (prefetches) {
                __asm__("" : "+r"(a[g])); /* or each has an index of its own */
            }
        }
        b += b_step;
    }
    ptrdiff_t c_row = m->c_row;
    __asm__("" : "+r"(c_row)); /* or all rows' addresses are held meanwhile */
    if (!few_rows && m->add) {
        add_panel(sum, c, c_row, rows, n_vec, m->keep);
    }
    store_panel(sum, c, c_row, rows, n_vec);
}

/* Products come between these two calls; on a matrix unit, calls of the same names hold its
 * tiles. */
static INLINE void
begin_products(void)
{
}

static INLINE void
end_products(void)
{
}

#endif
