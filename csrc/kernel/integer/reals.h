/* Products of rows that are not rounded: chains of codes, as floats, and numbers. */
#ifndef ATTN_KERNEL_INTEGER_REALS_H
#define ATTN_KERNEL_INTEGER_REALS_H

#include "kernel/integer/product.h"

/* LANES columns' numbers in row t of a step. */
static INLINE v_real
numbers_in(const packed_step *w, const int t, const code_form form, int zero,
           v_table table)
{
    return form == CODES_4
               ? v_float_nibbles(w->rows[0], t, table)
               : v_float_codes(signed_quads_in(w, t / ATTN_QUAD, form, zero),
                               t % ATTN_QUAD);
}

/* n_rows from row r on, n_reals vectors of columns from `column` on. */
static INLINE void
add_reals(const integer_product *m, const int n_rows, const int n_reals, ptrdiff_t r,
          ptrdiff_t column, const code_form form)
{
    const ptrdiff_t step = step_of(form, sizeof(float));
    const int n_terms = quads_of(form) * ATTN_QUAD;
    const v_table table = v_begin_nibbles(m->zero);
    const char *codes = form == READY ? (const char *)((const float *)m->ready + column)
                                      : m->codes + column * ATTN_QUAD;
    const char *next = codes + AHEAD;
    const float *x = m->reals + r * m->row;
    v_real sums[FLOAT_ROWS][PANEL_REALS];

    load_outputs(m, sums, n_rows, n_reals, r, column, m->is_first);
    for (ptrdiff_t p = 0, left = m->n; left > 0; p++, left -= m->part) {
        v_real chains[FLOAT_ROWS][PANEL_REALS];
        UNROLLED for (int i = 0; i < n_rows; i++)
        {
            UNROLLED for (int j = 0; j < n_reals; j++)
            {
                chains[i][j] = v_set1(0);
            }
        }
        for (ptrdiff_t k = left < m->part ? left : m->part; k > 0;
             k -= n_terms, codes += step, x += n_terms) {
            packed_step packed[PANEL_REALS];
            if (form != READY) {
                next = stream_step(packed, codes, n_reals, form, next);
            }
            UNROLLED for (int t = 0; t < n_terms; t++)
            {
                v_real w[PANEL_REALS];
                UNROLLED for (int j = 0; j < n_reals; j++)
                {
                    const float *ready = (const float *)(const void *)codes;
                    w[j] = form == READY
                               ? v_load(ready + t * PANEL + j * LANES)
                               : numbers_in(&packed[j], t, form, m->zero, table);
                }
                UNROLLED for (int i = 0; i < n_rows; i++)
                {
                    v_real one = v_set1(x[i * m->row + t]);
                    UNROLLED for (int j = 0; j < n_reals; j++)
                    {
                        chains[i][j] = v_fma(w[j], one, chains[i][j]);
                    }
                }
            }
        }
        UNROLLED for (int j = 0; j < n_reals; j++)
        {
            part_factors f = load_part(m, p, column + j * LANES, form == READY, true);
            UNROLLED for (int i = 0; i < n_rows; i++)
            {
                sums[i][j] = add_part(m, f, r + i, p, chains[i][j], sums[i][j]);
            }
        }
    }
    store_outputs(m, sums, n_rows, n_reals, r, column);
}

/* The floats of LANES columns in four rows. */
static INLINE void
store_codes(float *to, v_codes codes)
{
    UNROLLED for (int t = 0; t < ATTN_QUAD; t++)
    {
        v_store(to + t * PANEL, v_float_codes(codes, t));
    }
}

/* Makes n rows of codes ready for products of floats. */
static INLINE void
make_floats_ready(const integer_product *m, const code_form form)
{
    const ptrdiff_t step = step_of(form, 0);
    const char *from = m->codes;
    float *to = m->ready;

    for (ptrdiff_t k = m->n; k > 0; k -= quads_of(form) * ATTN_QUAD, from += step) {
        packed_step w[PANEL_REALS];
        load_step(w, from, PANEL_REALS, form);
        UNROLLED for (int i = 0; i < quads_of(form); i++, to += QUAD_ROW)
        {
            UNROLLED for (int j = 0; j < PANEL_REALS; j++)
            {
                store_codes(to + j * LANES, signed_quads_in(&w[j], i, form, m->zero));
            }
        }
    }
}

/* All of n rows: of many in tiles, with codes that are made ready once. */
static NOINLINE void
add_floats(const integer_product *m, ptrdiff_t n, code_form form)
{
    ptrdiff_t r = 0;

    if (n >= SHARED_FROM) {
        switch (form) {
        case CODES_8: make_floats_ready(m, CODES_8); break;
        case CODES_6: make_floats_ready(m, CODES_6); break;
        case CODES_5: make_floats_ready(m, CODES_5); break;
        default: make_floats_ready(m, CODES_4);
        }
        form = READY;
    }
    for (; form == READY && n - r >= FLOAT_ROWS; r += FLOAT_ROWS) {
        for (ptrdiff_t k = 0; k < PANEL; k += FLOAT_REALS * LANES) {
            add_reals(m, FLOAT_ROWS, FLOAT_REALS, r, k, READY);
        }
    }
    for (; r < n; r++) {
        switch (form) {
        case CODES_8: add_reals(m, 1, PANEL_REALS, r, 0, CODES_8); break;
        case CODES_6: add_reals(m, 1, PANEL_REALS, r, 0, CODES_6); break;
        case CODES_5: add_reals(m, 1, PANEL_REALS, r, 0, CODES_5); break;
        case CODES_4: add_reals(m, 1, PANEL_REALS, r, 0, CODES_4); break;
        case READY: add_reals(m, 1, PANEL_REALS, r, 0, READY); break;
        }
    }
}

_Static_assert(PANEL_REALS % FLOAT_REALS == 0, "whole tiles");

#endif
