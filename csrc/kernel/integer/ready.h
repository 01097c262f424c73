/* Codes of a chunk made ready for products by vectors, before these. */
#ifndef ATTN_KERNEL_INTEGER_READY_H
#define ATTN_KERNEL_INTEGER_READY_H

#include "kernel/integer/product.h"

#ifndef READY_FIRST
#define READY_FIRST 0 /* are codes made ready before all tiles, which is less code? */
#endif

#if HAS_CROSSED
static INLINE v_dots
subtract_own(v_dots sum, v_quads w)
{
    return v_subtract_own(sum, w);
}
#else
static INLINE v_dots
subtract_own(v_dots sum, v_quads w)
{
    (void)w;
    return sum;
}
#endif

/* Makes a chunk's codes ready for products; pairs of quads lie where the first one's would. `own`:
 * finds what crossed products of columns begin with, too. */
static INLINE void
make_ready_as(const integer_product *m, const code_form form, const bool pairs,
              const bool own)
{
    const v_table table = table_of(m, form);
    const char *from = m->codes;
    code *to = m->ready;
    int32_t *begins = m->own;

    for (ptrdiff_t left = m->n; left > 0; left -= m->part) {
        v_dots sums[PANEL_VECTORS];
        UNROLLED for (int j = 0; j < PANEL_VECTORS; j++)
        {
            sums[j] = v_begin_dots(0);
        }
        for (ptrdiff_t k = left < m->part ? left : m->part; k > 0;
             k -= quads_of(form) * ATTN_QUAD, from += step_of(form)) {
            packed_step w[PANEL_VECTORS];
            load_step(w, from, PANEL_VECTORS, form);
            UNROLLED for (int i = 0; i < quads_of(form); i += pairs ? 2 : 1)
            {
                UNROLLED for (int j = 0; j < PANEL_VECTORS; j++)
                {
                    v_quads quads = pairs ? pair_in(&w[j], i, form)
                                          : ready_quads_in(&w[j], i, form, table);
                    v_store_ready(to + i * QUAD_ROW + j * VECTOR_CODES, quads);
                    sums[j] = own ? subtract_own(sums[j], quads) : sums[j];
                }
            }
            to += quads_of(form) * QUAD_ROW;
        }
        UNROLLED for (int j = 0; own && j < PANEL_VECTORS; j++, begins += LANES)
        {
            memcpy(begins, &sums[j], sizeof sums[j]);
        }
    }
}

/* Narrow codes. */
static INLINE void
make_narrow_ready(const integer_product *m, code_form form, const bool pairs)
{
    if (form == CODES_6) {
        make_ready_as(m, CODES_6, pairs, false);
    } else if (form == CODES_5) {
        make_ready_as(m, CODES_5, pairs, false);
    } else {
        make_ready_as(m, CODES_4, pairs, false);
    }
}

/* Those that no tile makes ready. */
static NOINLINE void
make_ready(const integer_product *m, code_form form, bool are_pairs)
{
    const bool own = HAS_CROSSED && m->own != NULL;

    if (own && form == CODES_OF_VALUES) {
        make_ready_as(m, CODES_OF_VALUES, false, true);
    } else if (own) {
        make_ready_as(m, CODES_8, false, true);
    } else if (!READY_FIRST || form == CODES_OF_VALUES) {
        make_ready_as(m, CODES_OF_VALUES, false, false);
    } else if (form == CODES_8) {
        make_ready_as(m, CODES_8, false, false);
    } else if (PAIRS && are_pairs) {
        make_narrow_ready(m, form, true);
    } else {
        make_narrow_ready(m, form, false);
    }
}

#endif
