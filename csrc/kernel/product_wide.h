/* The product as wide tasks have it: columns of B are lanes, as in row form, a panel of
 * ATTN_PANEL_COLUMNS of them at a time for WIDE_ROWS rows of A. Nothing is transposed, an operand of
 * A is loaded once for a panel's row, and there are spare loads for asking for what comes
 * next. */
#ifndef ATTN_KERNEL_PRODUCT_WIDE_H
#define ATTN_KERNEL_PRODUCT_WIDE_H

#include "kernel/trail.h"
#include "kernel/wide_sums.h"

#if WIDE_TASKS

/* A B, or C + A B, for WIDE_ROWS rows, plus `bias` plus `residual`, where these are not NULL, goes
 * to `to`, which may be C or the residual. */
typedef struct {
    real *c;
    const real *bias, *residual;   /* of the bias one row */
    ptrdiff_t c_row, residual_row; /* reals from row to row */
    char *to;
    ptrdiff_t to_row; /* bytes from row to row */
    bool rounds;      /* to bfloat16 */
    const operand *a;
    ptrdiff_t a_row, a_step; /* operands from row to row, from step to step */
    const operand *b;        /* (steps, ATTN_PANEL_COLUMNS) */
    ptrdiff_t n_steps;
    bool add;
    trail trails[2]; /* what is asked for meanwhile */
} wide_product;

/* A function of its own, so that nothing else is in registers. */
static ONE_COPY void
multiply_wide_rows(const wide_product *w)
{
    const ptrdiff_t a_row = w->a_row;
    const ptrdiff_t a_step = w->a_step * (ptrdiff_t)sizeof(operand);
    const operand *a[MAX_POINTERS], *b = w->b;
    const char *one = w->trails[0].at, *other = w->trails[1].at;
    v_real sum[WIDE_SUMS];

    for (int g = 0; g < MAX_POINTERS; g++) {
        a[g] = w->a + g * POINTER_ROWS * a_row;
        __asm__("" : "+r"(a[g])); /* or compilers add it up again */
    }
    UNROLLED for (int k = 0; k < WIDE_SUMS; k++)
    {
        sum[k] = v_set1(0);
    }
    for (ptrdiff_t t = 0; t < w->n_steps; t++, b += ATTN_PANEL_COLUMNS) {
        v_operand x[PANEL_VECTORS];
        UNROLLED for (int v = 0; v < PANEL_VECTORS; v++)
        {
            x[v] = v_load_operands(b + v * LANES);
        }
        __builtin_prefetch(one, 0, 2);
        __builtin_prefetch(other, 0, 2);
        one += w->trails[0].step;
        other += w->trails[1].step;
        UNROLLED for (int k = 0; k < WIDE_SUMS; k++)
        {
            const int r = k / PANEL_VECTORS;
            v_operand y = v_set1_operand(a[r / POINTER_ROWS][r % POINTER_ROWS * a_row]);
            sum[k] = v_dot(y, x[k % PANEL_VECTORS], sum[k]);
        }
        for (int g = 0; g * POINTER_ROWS < WIDE_ROWS; g++) {
            /* in bytes, or there is a loop for steps of 1, and one for others */
            a[g] = (const operand *)(const void *)((const char *)a[g] + a_step);
        }
    }
    if (w->add) {
        add_rows(sum, w->c, w->c_row);
    }
    if (w->bias != NULL) {
        add_rows(sum, w->bias, 0);
    }
    if (w->residual != NULL) {
        add_rows(sum, w->residual, w->residual_row);
    }
    if (w->rounds) {
        store_rows(sum, w->to, w->to_row, true);
    } else {
        store_rows(sum, w->to, w->to_row, false);
    }
}

#endif
#endif
