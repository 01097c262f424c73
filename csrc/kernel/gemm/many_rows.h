/* The product of many rows, for kernels that set HAS_MANY_ROWS. Columns of B are lanes, as for
 * few rows. PART_COLUMNS columns of a panel, or all of them, are multiplied by GROUP_ROWS rows of A
 * at a time. Nothing is transposed, an operand of A is loaded once for a row of the part, and
 * steps prefetch what comes next. */
#ifndef ATTN_KERNEL_GEMM_MANY_ROWS_H
#define ATTN_KERNEL_GEMM_MANY_ROWS_H

#include "core/paths.h"
#include "kernel/gemm/product.h"
#include "kernel/operands/prefetch.h"

enum {
    PART_VECTORS = 3,
    PART_COLUMNS = PART_VECTORS * LANES,
    PANEL_PARTS = ATTN_PANEL_COLUMNS / PART_COLUMNS,
    GROUP_ROWS = PANEL_ROWS * TILE_VECTORS / PART_VECTORS,
    GROUP_SUMS = GROUP_ROWS * PART_VECTORS,
    GROUP_STEPS = PANEL_STEPS > 1 ? 2 * PANEL_STEPS : 2 /* between two jumps */
};

_Static_assert(GROUP_ROWS <= (MAX_POINTERS - 1) * POINTER_ROWS,
               "pointers reach all rows");
_Static_assert(ATTN_PANEL_COLUMNS % PART_COLUMNS == 0, "panels are whole parts");

/* sum += rows that lie `row` reals apart; where that is 0, one row is added to all. */
static INLINE void
add_rows(v_real *sum, const real *rows, ptrdiff_t row)
{
    UNROLLED for (int k = 0; k < GROUP_SUMS; k++)
    {
        sum[k] = v_add(sum[k], v_load(rows + k % PART_VECTORS * LANES));
        if (k % PART_VECTORS == PART_VECTORS - 1) {
            rows += row;
            __asm__("" : "+r"(rows)); /* or all rows' addresses are held */
        }
    }
}

static INLINE void
store_rows(const v_real *sum, char *to, ptrdiff_t row, const bool rounds)
{
    UNROLLED for (int k = 0; k < GROUP_SUMS; k++)
    {
        const int at = k % PART_VECTORS * LANES;
        if (rounds) {
            v_store_bf16((uint16_t *)(void *)to + at, sum[k]);
        } else {
            v_store((real *)(void *)to + at, sum[k]);
        }
        if (k % PART_VECTORS == PART_VECTORS - 1) {
            to += row;
            __asm__("" : "+r"(to));
        }
    }
}

/* `to` = A B for GROUP_ROWS rows, plus C, `bias` and `residual`, in that order: C where `add`,
 * the others unless NULL. `to` may be C or the residual. */
typedef struct {
    real *c;
    const real *bias, *residual;   /* of the bias one row */
    ptrdiff_t c_row, residual_row; /* reals from row to row */
    char *to;
    ptrdiff_t to_row; /* bytes from row to row */
    bool rounds;      /* to bfloat16 */
    const operand *a;
    ptrdiff_t a_row, a_step; /* operands from row to row, from step to step */
    const operand *b;        /* (steps, PART_COLUMNS), rows of a panel apart */
    ptrdiff_t n_steps;
    bool add;
    line_prefetch
        next[2]; /* prefetched during the product, of the second two lines at once */
} many_rows_product;

/* How often a product of n_steps steps prefetches: once between two jumps is enough for all lines,
 * and more prefetches of the same line delay the loads of A. */
static INLINE ptrdiff_t
prefetches_of(ptrdiff_t n_steps)
{
    return (n_steps + GROUP_STEPS - 1) / GROUP_STEPS;
}

/* sum += the products of one step, of GROUP_ROWS operands of A at pointers and a row of B. */
static INLINE void
multiply_step(v_real *sum, const operand *const *a, ptrdiff_t a_row, const operand *b)
{
    v_operand x[PART_VECTORS];

    UNROLLED for (int v = 0; v < PART_VECTORS; v++)
    {
        x[v] = v_load_operands(b + v * LANES);
    }
    add_step(sum, a, a_row, x, GROUP_ROWS, PART_VECTORS, POINTER_ROWS);
}

/* Moves pointers into A to the next step: in bytes, or there is a loop for steps of 1, and one for
 * others. */
static INLINE void
move_on(const operand **a, ptrdiff_t a_step)
{
    UNROLLED for (int g = 0; g * POINTER_ROWS < GROUP_ROWS; g++)
    {
        a[g] = (const operand *)(const void *)((const char *)a[g] + a_step);
    }
}

#if PANEL_STEPS > 1
/* Multiplies the first steps of a product, all that make whole groups of GROUP_STEPS; there is no
 * jump within a group. Returns their number. The operands of a row are adjacent, or those of a
 * step: a_step is 1 or GROUP_ROWS. */
static INLINE ptrdiff_t
multiply_step_groups(v_real *sum, const many_rows_product *w, const ptrdiff_t a_step)
{
    const ptrdiff_t a_row = a_step == 1 ? w->a_row : 1;
    const ptrdiff_t n = w->n_steps / GROUP_STEPS * GROUP_STEPS;
    const operand *a[GROUP_ROWS], *b = w->b;
    const char *one = w->next[0].at, *other = w->next[1].at;
    ptrdiff_t t = 0;

    attn_count_path(ATTN_PATH_MANY_ROWS_GROUPS);
    point_at_rows(a, w->a, a_row, GROUP_ROWS, 1);
    for (; t < n; t += GROUP_STEPS) {
        __builtin_prefetch(one, 0, 2);
        one += w->next[0].step;
        __builtin_prefetch(other, 0, 2);
        __builtin_prefetch(other + CACHE_LINE, 0, 2);
        other += w->next[1].step;
        UNROLLED for (int k = 0; k < GROUP_STEPS; k++)
        {
            v_operand x[PART_VECTORS];
            UNROLLED for (int v = 0; v < PART_VECTORS; v++)
            {
                x[v] = v_load_operands(b + k * ATTN_PANEL_COLUMNS + v * LANES);
            }
            UNROLLED for (int r = 0; r < GROUP_ROWS; r++)
            {
                v_operand y = v_set1_operand(a[r][k * a_step]);
                UNROLLED for (int v = 0; v < PART_VECTORS; v++)
                {
                    v_add_product(&sum[r * PART_VECTORS + v], y, x[v]);
                }
            }
            __asm__ volatile("" : : : "memory"); /* or steps share registers */
        }
        UNROLLED for (int r = 0; r < GROUP_ROWS; r++)
        {
            a[r] += GROUP_STEPS * a_step;
        }
        b += GROUP_STEPS * ATTN_PANEL_COLUMNS;
        __asm__("" : "+r"(t), "+r"(b));
    }
    return t;
}
#else
static INLINE ptrdiff_t
multiply_step_groups(v_real *sum, const many_rows_product *w, const ptrdiff_t a_step)
{
    (void)sum, (void)w, (void)a_step;
    return 0;
}
#endif

/* The product of one group of rows and one part of a panel. Never inlined, so that nothing else
 * takes registers. */
static ALIGNED ONE_COPY void
multiply_many_rows(const many_rows_product *w)
{
    const ptrdiff_t a_row = w->a_row;
    const ptrdiff_t a_step = w->a_step * (ptrdiff_t)sizeof(operand);
    const operand *a[MAX_POINTERS], *b = w->b;
    const char *one = w->next[0].at, *other = w->next[1].at;
    v_real sum[GROUP_SUMS];

    attn_count_path(ATTN_PATH_MANY_ROWS);
    UNROLLED for (int g = 0; g < MAX_POINTERS; g++)
    {
        a[g] = w->a + g * POINTER_ROWS * a_row;
        __asm__("" : "+r"(a[g])); /* or compilers add it up again */
    }
    UNROLLED for (int k = 0; k < GROUP_SUMS; k++)
    {
        sum[k] = v_set1(0);
    }
    ptrdiff_t left = w->n_steps;
    if (PANEL_STEPS > 1) {
        ptrdiff_t done = w->a_step == 1 ? multiply_step_groups(sum, w, 1)
                                        : multiply_step_groups(sum, w, GROUP_ROWS);
        move_on(a, done * a_step);
        b += done * ATTN_PANEL_COLUMNS;
        left -= done;
    }
    for (; left > 0; left -= 2, b += 2 * ATTN_PANEL_COLUMNS) {
        __builtin_prefetch(one, 0, 2);
        one += w->next[0].step;
        multiply_step(sum, a, a_row, b);
        move_on(a, a_step);
        if (left == 1) {
            break;
        }
        __builtin_prefetch(other, 0, 2);
        __builtin_prefetch(other + CACHE_LINE, 0, 2);
        other += w->next[1].step;
        multiply_step(sum, a, a_row, b + ATTN_PANEL_COLUMNS);
        move_on(a, a_step);
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
