/* Products of many rounded rows on a matrix unit, for the kernel that rounds them. A tile's sums of
 * a part go through memory, where they become floats and are added to the output. An isa/ file
 * chooses the vocabularies, then includes this. */
#ifndef ATTN_KERNEL_INTEGER_UNIT_H
#define ATTN_KERNEL_INTEGER_UNIT_H

#include "kernel/integer/product.h"

/* Makes codes ready, less zero, with zeros beyond their rows. */
static INLINE void
make_codes_ready(const integer_product *m, const code_form form)
{
    const ptrdiff_t step = step_of(form);
    const char *from = m->codes;
    code *to = m->ready;
    const v_table table = table_of(m, form);

    for (ptrdiff_t k = m->n; k > 0; k -= quads_of(form) * ATTN_QUAD, from += step) {
        packed_step w[PANEL_REALS];
        load_step(w, from, PANEL_REALS, form);
        UNROLLED for (int i = 0; i < quads_of(form); i++, to += QUAD_ROW)
        {
            UNROLLED for (int j = 0; j < PANEL_REALS; j++)
            {
                v_codes codes = form == CODES_OF_VALUES
                                    ? ready_quads_in(&w[j], i, form, table)
                                    : quads_in(&w[j], i, form);
                u_store_codes(to + j * VECTOR_CODES, codes,
                              form == CODES_OF_VALUES ? OFFSET
                              : form == CODES_8       ? 0
                                                      : m->zero);
            }
        }
    }
    memset(to, 0, BEYOND * PANEL * sizeof *to);
}

/* Terms of a step: each part but a chunk's last has whole steps. What that one lacks are zeros
 * among the ready codes, whatever x is there. */
static int
unit_step(ptrdiff_t part)
{
    return part % UNIT_STEP == 0 ? UNIT_STEP : part % 32 == 0 ? 32 : 16;
}

/* output += the sums of a part, of n rows from row r on. */
static void
add_unit_sums(const integer_product *m, const int32_t *sums, ptrdiff_t r, ptrdiff_t n,
              ptrdiff_t part)
{
    for (ptrdiff_t i = r; i < r + n; i++, sums += UNIT_SUMS) {
        v_real row[1][PANEL_REALS];
        load_outputs(m, row, 1, PANEL_REALS, i, 0, m->is_first && part == 0);
        UNROLLED for (int j = 0; j < PANEL_REALS; j++)
        {
            v_real products = v_float_dots(v_load_dots(sums + j * LANES));
            part_factors f = load_part(m, part, 0, j * LANES, true, false);
            row[0][j] = add_part(m, f, i, part, true, products, row[0][j]);
        }
        store_outputs(m, row, 1, PANEL_REALS, i, 0);
    }
}

/* A panel's columns of n rows from row r on, of one row of tiles or two. */
static INLINE void
add_unit_rows(const integer_product *m, ptrdiff_t r, ptrdiff_t n, int step,
              const bool two)
{
    int32_t sums[2 * UNIT_NEXT];
    const code *codes = m->ready;
    const term *x = m->terms + r * m->row;

    for (ptrdiff_t p = 0, left = m->n; left > 0; p++, left -= m->part) {
        u_clear();
        for (ptrdiff_t k = left < m->part ? left : m->part; k > 0; k -= step) {
            u_multiply(x, m->row, codes, two);
            x += step;
            codes += step * PANEL;
        }
        u_store(sums, two);
        add_unit_sums(m, sums, r, n, p);
    }
}

void INTEGER_UNIT(const void *product, ptrdiff_t n, int form);

/* All of n rows. Codes become ready first. */
void
INTEGER_UNIT(const void *product, ptrdiff_t n, int form)
{
    const integer_product *m = product;
    int step = unit_step(m->part);

    switch ((code_form)form) {
    case CODES_8: make_codes_ready(m, CODES_8); break;
    case CODES_6: make_codes_ready(m, CODES_6); break;
    case CODES_5: make_codes_ready(m, CODES_5); break;
    case CODES_4: make_codes_ready(m, CODES_4); break;
    case CODES_OF_VALUES: make_codes_ready(m, CODES_OF_VALUES); break;
    case READY: break;
    }
    u_publish(m);
    u_begin(step);
    for (ptrdiff_t r = 0; r < n; r += 2 * UNIT_ROWS) {
        ptrdiff_t left = n - r;
        if (left > UNIT_ROWS) {
            left = left < 2 * UNIT_ROWS ? left : 2 * UNIT_ROWS;
            add_unit_rows(m, r, left, step, true);
        } else {
            add_unit_rows(m, r, left, step, false);
        }
    }
    u_end();
}

_Static_assert((int)UNIT_SUMS == (int)PANEL, "a panel is three tiles wide");

#endif
