/* A panel of the product of tile form: the sums of PANEL_ROWS x TILE_VECTORS vectors of C stay in
 * registers, or those of half as many rows of two tiles, which take fewer loads for a
 * multiply-add. */
#ifndef ATTN_KERNEL_GEMM_PANEL_H
#define ATTN_KERNEL_GEMM_PANEL_H

#include "core/paths.h"
#include "kernel/gemm/product.h"
#include "kernel/operands/prefetch.h"

/* C = A B, or C * keep + A B. */
typedef struct {
    product base;
    bool add;         /* to what C holds, else overwrite it */
    const real *keep; /* with add: what columns of C are multiplied by first; NULL: 1 */
    prefetch next[2]; /* prefetched during the product */
    /* Where two tiles are multiplied at once: */
    ptrdiff_t b_tile, c_tile; /* bytes of B, and reals of C, from one to the other */
    ptrdiff_t more_steps;     /* that only the second has; A is transposed */
} tile_product;

/* Can two tiles be multiplied at once, as 2 * TILE_VECTORS vectors? */
enum { PAIRS_TILES = PANEL_ROWS == 12 && TERMS == 1 };

/* The rows of a panel whose tiles have n_vec vectors. */
static INLINE int
panel_rows(const int n_vec)
{
    return n_vec > TILE_VECTORS ? PANEL_ROWS / 2 : PANEL_ROWS;
}

/* How many steps ahead rows of A that lie apart are prefetched. */
enum { STEPS_AHEAD = 8 };

/* A whole panel prefetches a line every STEPS_A_LINE steps. Steps without jumps between them are
 * there to save instructions, so they prefetch less often. */
enum { STEPS_A_LINE = PANEL_STEPS > 1 ? 2 : 1 };

/* sum += C * keep */
static INLINE void
add_kept(v_real *sum, const real *c, ptrdiff_t c_row, ptrdiff_t c_tile, const int rows,
         const int n_vec, const real *keep)
{
    UNROLLED for (int v = 0; v < n_vec; v++)
    {
        const real *from = c + vector_at(v, c_tile, LANES);
        v_real factor = keep == NULL ? v_set1(1) : v_load(keep + v * LANES);
        UNROLLED for (int r = 0; r < rows; r++)
        {
            v_real *to = &sum[r * n_vec + v];
            *to = v_fma(v_load(from + r * c_row), factor, *to);
        }
    }
}

#if PANEL_STEPS > 1
/* Multiplies the first steps of a whole panel, all that make whole groups of PANEL_STEPS; there is
 * no jump within a group. Returns their number. `a` is the first operand of the panel. */
static INLINE ptrdiff_t
add_step_groups(v_real *sum, const tile_product *m, const operand *a,
                const bool a_transposed, const step_prefetch *next)
{
    const ptrdiff_t a_row = m->base.a.row, ahead_step = next->step;
    const ptrdiff_t b_row = m->base.b_row;
    const ptrdiff_t n = m->base.n_steps / PANEL_STEPS * PANEL_STEPS;
    const operand *rows[PANEL_ROWS]; /* the first alone, where A is transposed */
    const char *b = m->base.b, *ahead = next->at;

    ptrdiff_t t = 0;

    attn_count_path(ATTN_PATH_PANEL_GROUPS);
    point_at_rows(rows, a, a_row, a_transposed ? 1 : PANEL_ROWS, 1);
    while (t < n) {
        UNROLLED for (int k = 0; k < PANEL_STEPS; k++)
        {
            v_operand x[TILE_VECTORS];
            UNROLLED for (int v = 0; v < TILE_VECTORS; v++)
            {
                x[v] = v_load_operands((const operand *)(const void *)b + v * LANES);
            }
            if (a_transposed) {
                __builtin_prefetch(rows[0] + STEPS_AHEAD * a_row + PANEL_ROWS - 1);
            }
            if (k % STEPS_A_LINE == 0) {
                __builtin_prefetch(ahead, 0, 2);
                ahead += ahead_step;
            }
            UNROLLED for (int r = 0; r < PANEL_ROWS; r++)
            {
                v_operand y =
                    v_set1_operand(a_transposed ? rows[0][r] : rows[r][t + k]);
                UNROLLED for (int v = 0; v < TILE_VECTORS; v++)
                {
                    v_real *to = &sum[r * TILE_VECTORS + v];
                    *to = v_dot(y, x[v], *to);
                }
                v_outlive(y); /* or a sum takes its register, and is moved back */
            }
            UNROLLED for (int v = 0; v < TILE_VECTORS; v++)
            {
                v_outlive(x[v]);
            }
            b += b_row;
            if (a_transposed) {
                rows[0] += a_row;
                __asm__("" : "+r"(rows[0])); /* or each step has addresses of its own */
            }
            __asm__ volatile("" : "+r"(b) : : "memory"); /* or steps share registers */
        }
        t += PANEL_STEPS;
        __asm__("" : "+r"(t), "+r"(ahead)); /* or each row has an index */
    }
    return t; /* not n: compilers unroll what they know to be a few steps */
}
#else
static INLINE ptrdiff_t
add_step_groups(v_real *sum, const tile_product *m, const operand *a,
                const bool a_transposed, const step_prefetch *next)
{
    (void)sum, (void)m, (void)a, (void)a_transposed, (void)next;
    return 0;
}
#endif

/* Rows i .. i + rows - 1 of C. rows, n_vec and a_transposed are constants to the compiler;
 * `next` is what a whole panel prefetches. */
static INLINE void
multiply_panel(const tile_product *m, ptrdiff_t i, const int rows, const int n_vec,
               const bool a_transposed, const step_prefetch *next)
{
    const matrix a_rows = m->base.a;
    ptrdiff_t a_row = a_transposed ? 1 : a_rows.row;
    ptrdiff_t a_step = a_transposed ? a_rows.row : 1;
    const int per_pointer = a_transposed ? rows : POINTER_ROWS;
    const bool whole = rows == panel_rows(n_vec);
    const ptrdiff_t b_tile = m->b_tile;
    const char *ahead = whole ? next->at : NULL;
    const operand *a[MAX_POINTERS];
    const char *b = m->base.b;
    real *c = m->base.c + i * m->base.c_row;
    v_real sum[PANEL_ROWS * TILE_VECTORS];

    point_at_rows(a, a_rows.at + i * a_row, a_row, rows, per_pointer);
    clear_sums(sum, rows * n_vec);
    ptrdiff_t t = 0;
    if (PANEL_STEPS > 1 && whole && n_vec == TILE_VECTORS) {
        t = add_step_groups(sum, m, a[0], a_transposed, next);
        UNROLLED for (int g = 0; g * per_pointer < rows; g++)
        {
            a[g] += t * a_step;
        }
        b += t * m->base.b_row;
        ahead += t / STEPS_A_LINE * next->step;
    }
    for (; t < m->base.n_steps; t++) {
        v_operand x[2 * TILE_VECTORS];
        UNROLLED for (int v = 0; v < n_vec; v++)
        {
            const char *from = b + vector_at(v, b_tile, LANES * sizeof(operand));
            x[v] = v_load_operands((const operand *)(const void *)from);
        }
        if (a_transposed) {
            __builtin_prefetch(a[0] + STEPS_AHEAD * a_step + rows - 1);
        }
        if (whole) {
            __builtin_prefetch(ahead, 0, 2);
            ahead += next->step;
        }
        add_step(sum, a, a_row, x, rows, n_vec, per_pointer);
        UNROLLED for (int g = 0; g * per_pointer < rows; g++)
        {
            a[g] += a_step;
            if (whole) {
                __asm__("" : "+r"(a[g])); /* or each has an index of its own */
            }
        }
        b += m->base.b_row;
    }
    if (a_transposed && n_vec > TILE_VECTORS) {
        add_more_steps(sum, &m->base, a[0], b + b_tile, m->more_steps, rows);
    }
    ptrdiff_t c_row = m->base.c_row;
    __asm__(""
            : "+r"(c_row)); /* or compilers keep all rows' addresses during the loop */
    if (m->add) {
        add_kept(sum, c, c_row, m->c_tile, rows, n_vec, m->keep);
    }
    store_sums(sum, c, c_row, m->c_tile, rows, n_vec);
}

#endif
