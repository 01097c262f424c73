/* Products of many rounded rows on a matrix unit. A tile's sums of a part go through memory,
 * where they become floats and are added to the output. */
#ifndef ATTN_KERNEL_INTEGER_UNIT_H
#define ATTN_KERNEL_INTEGER_UNIT_H

#include "kernel/integer/product.h"

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
        float *to = m->output + i * OUTPUT_ROW;
        for (int j = 0; j < PANEL; j += LANES) {
            v_dots dots = v_load_dots(sums + j);
            v_store(to + j, add_part(m, part * PANEL + j, i, part, v_float_dots(&dots),
                                     v_load(to + j)));
        }
    }
}

/* A panel's columns of n rows from row r on, of one row of tiles or two. */
static INLINE void
add_unit_rows(const integer_product *m, ptrdiff_t r, ptrdiff_t n, int step,
              const bool two)
{
    int32_t sums[2 * UNIT_NEXT];
    const code *codes = m->codes;
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

/* All of n rows, with ready codes. */
static NOINLINE void
add_integers_on_unit(const integer_product *m, ptrdiff_t n)
{
    int step = unit_step(m->part);

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
