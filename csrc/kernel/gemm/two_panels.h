/* The product of one row with two packed panels that follow each other. They are two streams of
 * memory, of which Zen 3 reads more than of one, and their sums are all that AVX2's registers have
 * room for. */
#ifndef ATTN_KERNEL_GEMM_TWO_PANELS_H
#define ATTN_KERNEL_GEMM_TWO_PANELS_H

#include "kernel/gemm/product.h"

#if TAKES_TWO_PANELS
/* sum += the n steps that lie together in a row of each panel: one of floats, or two of bfloat16
 * numbers, the last of which may be missing. */
static INLINE void
add_panel_steps(v_real sum[2][PANEL_VECTORS], const operand *a, const char *const at[2],
                const int n, const bool pairs)
{
    UNROLLED for (int i = 0; i < 2; i++)
    {
        UNROLLED for (int v = 0; v < PANEL_VECTORS; v++)
        {
            const char *from = at[i] + v * LANES * (ptrdiff_t)sizeof(real);
            v_real x[2];
            if (pairs) {
                v_load_bf16_pairs(x, from);
            } else {
                x[0] = v_load((const real *)(const void *)from);
            }
            UNROLLED for (int t = 0; t < n; t++)
            {
                sum[i][v] = v_fma(v_set1(a[t]), x[t], sum[i][v]);
            }
        }
    }
}

static INLINE void
multiply_two_panels_as(const product *p, const bool pairs)
{
    const ptrdiff_t row = ATTN_PANEL_COLUMNS * sizeof(real);
    const int n = pairs ? 2 : 1;
    const operand *a = p->a.at, *end = a + p->n_steps;
    const char *at[2] = {p->b, p->b + (p->n_steps + n - 1) / n * row};
    v_real sum[2][PANEL_VECTORS];

    clear_sums(sum[0], 2 * PANEL_VECTORS);
    for (; end - a >= n; a += n) {
        add_panel_steps(sum, a, at, n, pairs);
        at[0] += row;
        at[1] += row;
    }
    if (a < end) {
        add_panel_steps(sum, a, at, 1, pairs);
    }
    store_sums(sum[0], p->c, 0, WIDTH, 1, 2 * PANEL_VECTORS);
}

/* C = A B. `pairs`: B holds bfloat16 numbers, two steps in a row. */
static ALIGNED NOINLINE void
multiply_two_panels(const product *p, bool pairs)
{
    if (pairs) {
        multiply_two_panels_as(p, true);
    } else {
        multiply_two_panels_as(p, false);
    }
}
#else
static INLINE void
multiply_two_panels(const product *p, bool pairs)
{
    (void)p, (void)pairs;
}
#endif

#endif
