/* Products of rows that are rounded: sums of integers. */
#ifndef ATTN_KERNEL_INTEGER_DOTS_H
#define ATTN_KERNEL_INTEGER_DOTS_H

#include "kernel/integer/product.h"

/* n_rows from row r on, n_reals vectors of columns from `column` on. If it makes codes ready, these
 * are stored for the other rows. With each step n_lines are prefetched, from `next` on. */
static INLINE void
add_dots(const integer_product *m, const int n_rows, const int n_reals, ptrdiff_t r,
         ptrdiff_t column, const code_form form, const bool makes, const char *next,
         const int n_lines)
{
    const ptrdiff_t first = column * ATTN_QUAD, step = step_of(form, sizeof(code));
    const int n_quads = quads_of(form), n_terms = n_quads * ATTN_QUAD;
    const char *codes = form == READY ? (const char *)((const code *)m->ready + first)
                                      : (const char *)m->codes + first;
    code *ready = (code *)m->ready + first;
    const term *x = m->terms + r * m->row;
    v_real sums[INT8_ROWS][PANEL_REALS];

    load_outputs(m, sums, n_rows, n_reals, r, column, m->is_first);
    for (ptrdiff_t p = 0, left = m->n; left > 0; p++, left -= m->part) {
        v_dots dots[INT8_ROWS][PANEL_REALS];
        UNROLLED for (int i = 0; i < n_rows; i++)
        {
            UNROLLED for (int j = 0; j < n_reals; j++)
            {
                dots[i][j] = v_begin_dots(m->begins[(r + i) * m->n_parts + p]);
            }
        }
        for (ptrdiff_t k = left < m->part ? left : m->part; k > 0;
             k -= n_terms, codes += step, x += n_terms) {
            packed_step packed[PANEL_REALS];
            if (form != READY && n_rows == 1) {
                next = stream_step(packed, codes, n_reals, form, next);
            } else if (form != READY) {
                load_step(packed, codes, n_reals, form);
            }
            UNROLLED for (int q = 0; q < n_quads; q++)
            {
                const code *row = (const code *)(const void *)codes + q * QUAD_ROW;
                v_four four[INT8_ROWS];
                UNROLLED for (int i = 0; i < n_rows; i++)
                {
                    four[i] = v_load_four(x + i * m->row + q * ATTN_QUAD);
                }
                UNROLLED for (int j = 0; j < n_reals; j++)
                {
                    const ptrdiff_t at = j * VECTOR_CODES;
                    v_quads w = form == READY
                                    ? v_load_ready(row + at)
                                    : v_quads_of(quads_in(&packed[j], q, form),
                                                 form == CODES_8);
                    if (makes) {
                        v_store_ready(ready + q * QUAD_ROW + at, w);
                    }
                    UNROLLED for (int i = 0; i < n_rows; i++)
                    {
                        dots[i][j] = v_add_dots(dots[i][j], w, four[i]);
                    }
                }
            }
            ready += n_quads * QUAD_ROW;
            next = prefetch_lines(next, n_lines);
        }
        UNROLLED for (int j = 0; j < n_reals; j++)
        {
            part_factors f =
                load_part(m, p, column + j * LANES, form == READY || makes, !ARE_BYTES);
            UNROLLED for (int i = 0; i < n_rows; i++)
            {
                v_real products = v_float_dots(dots[i][j]);
                sums[i][j] = add_part(m, f, r + i, p, products, sums[i][j]);
            }
        }
    }
    store_outputs(m, sums, n_rows, n_reals, r, column);
}

/* All columns of one row. */
static INLINE void
add_row_of_integers(const integer_product *m, ptrdiff_t r, const code_form form)
{
    const char *next = (const char *)m->codes + AHEAD;

    for (ptrdiff_t k = 0; k < PANEL; k += INT8_ONE * LANES) {
        add_dots(m, 1, INT8_ONE, r, k, form, false, next, 0);
    }
}

/* All columns of a tile from row r on. Every tile prefetches a part of the next chunk of codes,
 * which lie behind these. */
static INLINE void
add_tile_of_integers(const integer_product *m, ptrdiff_t r, const code_form form,
                     const bool makes)
{
    const int n_lines = QUAD_ROW / LINE * (quads_of(form) / QUADS);
    ptrdiff_t n_bytes = m->n / ATTN_CODE_ROWS * QUAD_ROW; /* 4 bits of each code */
    ptrdiff_t n_shares = (m->bits + 3) / 4, share = r / INT8_ROWS % n_shares;
    const char *next = (const char *)m->codes + n_bytes * m->bits / 4 + share * n_bytes;

    for (ptrdiff_t k = 0; k < PANEL; k += INT8_REALS * LANES) {
        add_dots(m, INT8_ROWS, INT8_REALS, r, k, form, makes, next, n_lines);
    }
}

/* All of n rows: of many in tiles, of which the first one makes codes ready unless all read them
 * as they lie; each row that is left is one. */
static NOINLINE void
add_integers(const integer_product *m, ptrdiff_t n, code_form form)
{
    ptrdiff_t r = 0;

    if (form == CODES_8 && ARE_BYTES) {
        for (; n - r >= INT8_ROWS; r += INT8_ROWS) {
            add_tile_of_integers(m, r, CODES_8, false);
        }
    } else if (form != READY && n >= SHARED_FROM && n >= INT8_ROWS) {
        switch (form) {
        case CODES_8: add_tile_of_integers(m, 0, CODES_8, true); break;
        case CODES_6: add_tile_of_integers(m, 0, CODES_6, true); break;
        case CODES_5: add_tile_of_integers(m, 0, CODES_5, true); break;
        default: add_tile_of_integers(m, 0, CODES_4, true);
        }
        r = INT8_ROWS;
        form = READY;
    }
    for (; form == READY && n - r >= INT8_ROWS; r += INT8_ROWS) {
        add_tile_of_integers(m, r, READY, false);
    }
    for (; r < n; r++) {
        switch (form) {
        case CODES_8: add_row_of_integers(m, r, CODES_8); break;
        case CODES_6: add_row_of_integers(m, r, CODES_6); break;
        case CODES_5: add_row_of_integers(m, r, CODES_5); break;
        case CODES_4: add_row_of_integers(m, r, CODES_4); break;
        case READY: add_row_of_integers(m, r, READY); break;
        }
    }
}

_Static_assert(PANEL_REALS % INT8_REALS == 0 && PANEL_REALS % INT8_ONE == 0,
               "whole tiles");

#endif
