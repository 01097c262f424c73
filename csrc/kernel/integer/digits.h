/* Tiles of split rows and codes of 4 bits. Digits of these rows are bytes, whose products with
 * SHORTS_ROWS rows of W are added up in 16 bits. */
#ifndef ATTN_KERNEL_INTEGER_DIGITS_H
#define ATTN_KERNEL_INTEGER_DIGITS_H

#include "kernel/integer/tile.h"

#if HAS_SPLIT_BYTES
/* Lines of the next chunk that are prefetched with each sum of 16 bits. */
enum { LINES_OF_SHORTS = 2 };

/* What such a tile, of one row, reads and writes. */
typedef struct {
    tile_parts parts; /* whose x and begins are not used, but these, in lines: */
    const int8_t *x;
    const int32_t *begins;
    ptrdiff_t row, n_begins; /* from line to line of these */
    const char *next;        /* of the next chunk, prefetched in steps */
    ptrdiff_t step;
} digits_tile;

/* dots = the products of the uppers and of the lowers with n rows of W, or add these. */
static INLINE void
add_digits(digits_tile *t, v_dots dots[2][PANEL_VECTORS], ptrdiff_t n, const bool adds)
{
    v_dots shorts[SPLIT_BYTES][PANEL_VECTORS];

    UNROLLED for (int d = 0; d < SPLIT_BYTES; d++)
    {
        UNROLLED for (int j = 0; j < FLOAT_REALS; j++)
        {
            shorts[d][j] = v_begin_dots(t->begins[d * t->n_begins]);
        }
    }
    t->begins++;
    for (; n > 0; n -= ATTN_CODE_ROWS, t->x += ATTN_CODE_ROWS) {
        UNROLLED for (int half = 0; half < 2; half++)
        {
            v_half w[FLOAT_REALS];
            UNROLLED for (int j = 0; j < FLOAT_REALS; j++)
            {
                w[j] = v_load_half(t->parts.codes + j * VECTOR_CODES, half);
            }
            UNROLLED for (int d = 0; d < SPLIT_BYTES; d++)
            {
                v_half x = v_load_half_bytes(t->x + d * t->row, half);
                UNROLLED for (int j = 0; j < FLOAT_REALS; j++)
                {
                    shorts[d][j] = v_add_half_to_shorts(shorts[d][j], w[j], x);
                }
            }
        }
        t->parts.codes += QUADS * QUAD_ROW;
    }
    prefetch_lines(t->next, LINES_OF_SHORTS);
    t->next += t->step;
    UNROLLED for (int j = 0; j < FLOAT_REALS; j++)
    {
        v_dots upper = adds ? dots[0][j] : v_begin_dots(0);
        v_dots lower = adds ? dots[1][j] : v_begin_dots(0);
        dots[0][j] = v_add_shorts(upper, shorts[0][j]);
        lower = v_add_upper_shorts(lower, shorts[1][j]);
        dots[1][j] = v_add_shorts(lower, shorts[2][j]);
    }
}

/* All parts. `once`: a part is no longer than sums of 16 bits hold. */
static INLINE void
add_parts_of_digits(const integer_product *m, digits_tile *t, const bool once)
{
    const ptrdiff_t most = SHORTS_ROWS;

    for (ptrdiff_t left = m->n, part = m->part; left > 0; left -= part) {
        v_dots dots[2][PANEL_VECTORS];
        ptrdiff_t n = left < part ? left : part;
        add_digits(t, dots, once || n < most ? n : most, false);
        for (n -= most; !once && n > 0; n -= most) {
            add_digits(t, dots, n < most ? n : most, true);
        }
        add_to_output(&t->parts, dots, 1, 2, FLOAT_REALS);
    }
}

/* Row r from a column on. `next` is what it prefetches of the next chunk; NULL: nothing. */
static NOINLINE void
add_digits_tile(const integer_product *m, ptrdiff_t r, ptrdiff_t column,
                const char *next)
{
    const ptrdiff_t n_begins = m->n_parts * attn_divide_up(m->part, SHORTS_ROWS);
    digits_tile t = {.parts = parts_of_tile(m, r, column),
                     .x = (const int8_t *)m->terms + r * SPLIT_BYTES * m->row,
                     .begins = m->begins + r * SPLIT_BYTES * n_begins,
                     .row = m->row,
                     .n_begins = n_begins,
                     .next = next != NULL ? next : (const char *)m->ready,
                     .step = next != NULL ? LINES_OF_SHORTS * CACHE_LINE : 0};
    v_real sums[1][PANEL_VECTORS];

    attn_count_path(ATTN_PATH_SPLIT_BYTES);
    begin_tile(m, &t.parts, 1, FLOAT_REALS);
    if (m->part <= SHORTS_ROWS) {
        add_parts_of_digits(m, &t, true);
    } else {
        add_parts_of_digits(m, &t, false);
    }
    load_outputs(m, sums, 1, FLOAT_REALS, r, column, false);
    store_outputs(m, sums, 1, FLOAT_REALS, r, column);
}

/* All of n rows. Tiles prefetch the next chunk of codes, which lies behind these, until all of it
 * is. */
static void
add_split_bytes(const integer_product *m, ptrdiff_t n, code_form form)
{
    const ptrdiff_t n_bytes = m->n * PANEL * m->bits / 8;
    const ptrdiff_t n_shorts = attn_divide_up(m->n, SHORTS_ROWS);
    ptrdiff_t at = 0;

    make_ready(m, form, true);
    for (ptrdiff_t k = 0; k < PANEL; k += FLOAT_REALS * LANES) {
        for (ptrdiff_t r = 0; r < n;
             r++, at += n_shorts * LINES_OF_SHORTS * CACHE_LINE) {
            add_digits_tile(m, r, k, at < n_bytes ? m->codes + n_bytes + at : NULL);
        }
    }
}
#else
static INLINE void
add_split_bytes(const integer_product *m, ptrdiff_t n, code_form form)
{
    (void)m, (void)n, (void)form;
}
#endif

#endif
