/* Tiles of rounded rows whose products are crossed: two become one, with what rows and columns have
 * of their own, in `begins` and `own`. */
#ifndef ATTN_KERNEL_INTEGER_CROSSED_H
#define ATTN_KERNEL_INTEGER_CROSSED_H

#include "kernel/integer/tile.h"

#if HAS_CROSSED
/* With each step a tile prefetches a line of the next chunk, which lies behind these, until so many
 * tiles have prefetched all of it: at least N_TILES in each column of tiles. */
enum {
    PANEL_SHARES = PANEL * ATTN_CODE_ROWS / CACHE_LINE,
    N_TILES = PANEL_SHARES * INT8_REALS / PANEL_VECTORS
};

/* Adds the products of quad number q of each column. */
static INLINE void
add_crossed(const tile_parts *t, v_dots dots[][PANEL_VECTORS], const int q)
{
    v_quads w[INT8_REALS];

    UNROLLED for (int j = 0; j < INT8_REALS; j++)
    {
        w[j] = v_load_ready(t->codes + q * QUAD_ROW + j * VECTOR_CODES);
    }
    UNROLLED for (int i = 0; i < INT8_ROWS; i++)
    {
        v_four x = v_load_four(t->x + i * t->row + q * ATTN_QUAD);
        UNROLLED for (int j = 0; j < INT8_REALS; j++)
        {
            dots[i][j] = v_add_crossed(dots[i][j], w[j], x);
        }
    }
}

/* From row r and a column on. A function of its own, so that compilers keep in registers what its
 * loop reads. */
static NOINLINE void
add_crossed_tile(const integer_product *m, ptrdiff_t r, ptrdiff_t column)
{
    tile_parts t = parts_of_tile(m, r, column);
    const ptrdiff_t share = r / INT8_ROWS + column / (INT8_REALS * LANES) * N_TILES;
    const ptrdiff_t n_bytes = m->n * PANEL * m->bits / 8;
    const bool prefetches = share < PANEL_SHARES;
    const ptrdiff_t step = prefetches ? CACHE_LINE : 0;
    const char *next =
        prefetches ? m->codes + n_bytes + share * (m->n / ATTN_CODE_ROWS * CACHE_LINE)
                   : (const char *)t.output;
    const int32_t *own = m->own + column;
    v_real sums[INT8_ROWS][PANEL_VECTORS];

    attn_count_path(ATTN_PATH_ROUNDED_TILES);
    attn_count_path(ATTN_PATH_CROSSED_TILES);
    begin_tile(m, &t, INT8_ROWS, INT8_REALS);
    for (ptrdiff_t left = m->n, part = m->part; left > 0; left -= part, own += PANEL) {
        v_dots dots[INT8_ROWS][PANEL_VECTORS];
        UNROLLED for (int i = 0; i < INT8_ROWS; i++)
        {
            UNROLLED for (int j = 0; j < INT8_REALS; j++)
            {
                dots[i][j] = v_begin_crossed(t.begins[i * t.n_parts], own + j * LANES);
            }
        }
        t.begins++;
        for (ptrdiff_t n = left < part ? left : part; n > 0; n -= ATTN_CODE_ROWS) {
            for (int q = 0; q < QUADS; q++) {
                add_crossed(&t, dots, q);
            }
            prefetch_lines(next, 1);
            next += step;
            t.x += ATTN_CODE_ROWS;
            t.codes += QUADS * QUAD_ROW;
        }
        add_to_output(&t, dots, INT8_ROWS, 1, INT8_REALS);
    }
    load_outputs(m, sums, INT8_ROWS, INT8_REALS, r, column, false);
    store_outputs(m, sums, INT8_ROWS, INT8_REALS, r, column);
}
#else
static INLINE void
add_crossed_tile(const integer_product *m, ptrdiff_t r, ptrdiff_t column)
{
    (void)m, (void)r, (void)column;
}
#endif

#endif
