/* Products of rows that are rounded: sums of integers. */
#ifndef ATTN_KERNEL_INTEGER_DOTS_H
#define ATTN_KERNEL_INTEGER_DOTS_H

#include "kernel/integer/product.h"

/* The quads of columns from number `at` on: those of the first four rows at `codes`, or of the
 * next four. */
static INLINE v_quads
load_quads(const char *codes, int at, const int half, const code_form form, int zero)
{
    const code *ready = (const code *)(const void *)codes;

    return form == READY     ? v_load_ready(ready + half * QUAD_ROW + at)
           : form == CODES_8 ? v_load_quads(codes + half * QUAD_ROW + at)
           : half == 0       ? v_lower_quads(codes + at, zero)
                             : v_upper_quads(codes + at, zero);
}

/* n_rows from row r on, n_reals vectors of columns from `column` on. */
static INLINE void
add_dots(const integer_product *m, const int n_rows, const int n_reals, ptrdiff_t r,
         ptrdiff_t column, const code_form form)
{
    const ptrdiff_t step = step_of(form, sizeof(code));
    const ptrdiff_t first = column * ATTN_QUAD;
    const char *codes =
        (const char *)m->codes + first * (form == READY ? (int)sizeof(code) : 1);
    const term *x = m->terms + r * m->row;
    v_real sums[INT8_ROWS][PANEL_REALS];

    load_outputs(m, sums, n_rows, n_reals, r, column);
    for (ptrdiff_t p = 0, left = m->n; left > 0; p++, left -= m->part) {
        v_dots dots[INT8_ROWS][PANEL_REALS * DOTS];
        UNROLLED for (int i = 0; i < n_rows; i++)
        {
            UNROLLED for (int j = 0; j < n_reals * DOTS; j++)
            {
                dots[i][j] = v_begin_dots(m->begins[(r + i) * m->n_parts + p]);
            }
        }
        for (ptrdiff_t k = left < m->part ? left : m->part; k > 0;
             k -= ATTN_CODE_ROWS, codes += step, x += ATTN_CODE_ROWS) {
            UNROLLED for (int half = 0; half < 2; half++)
            {
                v_four four[INT8_ROWS];
                UNROLLED for (int i = 0; i < n_rows; i++)
                {
                    four[i] = v_load_four(x + i * m->row + half * ATTN_QUAD);
                }
                UNROLLED for (int j = 0; j < n_reals * DOTS; j++)
                {
                    v_quads w = load_quads(codes, j * QUADS_CODES, half, form, m->zero);
                    UNROLLED for (int i = 0; i < n_rows; i++)
                    {
                        dots[i][j] = v_add_dots(dots[i][j], w, four[i]);
                    }
                }
            }
            if (form != READY) {
                prefetch_codes(codes, (int)step);
            }
        }
        UNROLLED for (int i = 0; i < n_rows; i++)
        {
            UNROLLED for (int j = 0; j < n_reals; j++)
            {
                sums[i][j] = add_part(m, p * PANEL + column + j * LANES, r + i, p,
                                      v_float_dots(dots[i] + j * DOTS), sums[i][j]);
            }
        }
    }
    store_outputs(m, sums, n_rows, n_reals, r, column);
}

/* All columns of one row. */
static INLINE void
add_row_of_integers(const integer_product *m, ptrdiff_t r, const code_form form)
{
    for (ptrdiff_t k = 0; k < PANEL; k += INT8_ONE * LANES) {
        add_dots(m, 1, INT8_ONE, r, k, form);
    }
}

/* All of n rows: with a ready panel in tiles, of which each row that is left is one. */
static NOINLINE void
add_integers(const integer_product *m, ptrdiff_t n, code_form form)
{
    ptrdiff_t r = 0;

    for (; form == READY && n - r >= INT8_ROWS; r += INT8_ROWS) {
        for (ptrdiff_t k = 0; k < PANEL; k += INT8_REALS * LANES) {
            add_dots(m, INT8_ROWS, INT8_REALS, r, k, READY);
        }
    }
    for (; r < n; r++) {
        switch (form) {
        case CODES_8: add_row_of_integers(m, r, CODES_8); break;
        case CODES_4: add_row_of_integers(m, r, CODES_4); break;
        case READY: add_row_of_integers(m, r, READY); break;
        }
    }
}

_Static_assert(PANEL_REALS % INT8_REALS == 0 && PANEL_REALS % INT8_ONE == 0,
               "whole tiles");

#endif
