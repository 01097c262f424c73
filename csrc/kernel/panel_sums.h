/* A panel of sums, rows x n_vec vectors, between registers and memory. */
#ifndef ATTN_KERNEL_PANEL_SUMS_H
#define ATTN_KERNEL_PANEL_SUMS_H

#include "kernel/operand.h"

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

#endif
