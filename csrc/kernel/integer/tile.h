/* Tiles of rounded rows, (n_rows, W's rows), with codes that are ready, (W's rows, n_vec vectors of
 * columns). Their products fill the registers, so the sums of the output wait in memory meanwhile.
 * */
#ifndef ATTN_KERNEL_INTEGER_TILE_H
#define ATTN_KERNEL_INTEGER_TILE_H

#include "core/paths.h"
#include "kernel/integer/ready.h"

#if defined(HAS_HALVES)
enum { HAS_ROUNDED_TILES = true };

/* What a tile reads and writes of a chunk, from a part on. */
typedef struct {
    const code *codes;
    const term *x;
    const int32_t *begins;
    const float *scales, *minimum_by; /* of the rows */
    const float *factors, *minimums;  /* of the columns; no minimums: NULL */
    ptrdiff_t row, n_parts; /* from row to row of x, and of begins and scales */
    float *output;
} tile_parts;

/* From row r and a column on, in the first part. Factors are float32, after convert_factors(). */
static INLINE tile_parts
parts_of_tile(const integer_product *m, ptrdiff_t r, ptrdiff_t column)
{
    const float *minimums = (const float *)(const void *)m->minimum.fine;

    return (tile_parts){.codes = (const code *)m->ready + column * ATTN_QUAD,
                        .x = m->terms + r * m->row,
                        .begins = m->begins + r * m->n_parts,
                        .scales = m->scales + r * m->n_parts,
                        .minimum_by = m->minimum_by + r * m->n_parts,
                        .factors = (const float *)(const void *)m->scale.fine + column,
                        .minimums = minimums != NULL ? minimums + column : NULL,
                        .row = m->row,
                        .n_parts = m->n_parts,
                        .output = m->output + r * OUTPUT_ROW + column};
}

/* Adds the products of quad number q of each column or, if `shorts`, of a pair of narrow quads, as
 * sums of 16 bits. Half by half, since registers hold few. */
static INLINE void
add_halves(const tile_parts *t, v_dots sums[][PANEL_VECTORS], const int n_rows,
           const int n_vec, const int q, const bool shorts)
{
    UNROLLED for (int half = 0; half < 2; half++)
    {
        v_half w[PANEL_VECTORS];
        UNROLLED for (int j = 0; j < n_vec; j++)
        {
            w[j] = v_load_half(t->codes + q * QUAD_ROW + j * VECTOR_CODES, half);
        }
        UNROLLED for (int i = 0; i < n_rows; i++)
        {
            v_half x = v_load_half_four(t->x + i * t->row + q * ATTN_QUAD, half);
            UNROLLED for (int j = 0; j < n_vec; j++)
            {
                sums[i][j] = shorts ? v_add_half_to_shorts(sums[i][j], w[j], x)
                                    : v_add_half(sums[i][j], w[j], x);
            }
        }
    }
}

/* Adds the products of pairs of narrow quads, as sums of 32 bits. */
static INLINE void
add_pairs(const tile_parts *t, v_dots dots[][PANEL_VECTORS], const int n_rows,
          const int n_vec)
{
    v_quads w[PANEL_VECTORS];

    UNROLLED for (int j = 0; j < n_vec; j++)
    {
        w[j] = v_load_ready(t->codes + j * VECTOR_CODES);
    }
    UNROLLED for (int i = 0; i < n_rows; i++)
    {
        v_four x = v_load_four(t->x + i * t->row);
        UNROLLED for (int j = 0; j < n_vec; j++)
        {
            dots[i][j] = v_add_pair_dots(dots[i][j], w[j], x);
        }
    }
}

/* Adds the products of n rows of W of 4 bits, by sums of 16 bits. */
static INLINE void
add_shorts(tile_parts *t, v_dots dots[][PANEL_VECTORS], const int n_rows,
           const int n_vec, ptrdiff_t n)
{
    v_dots shorts[INT8_ROWS][PANEL_VECTORS];

    UNROLLED for (int i = 0; i < n_rows; i++)
    {
        UNROLLED for (int j = 0; j < n_vec; j++)
        {
            shorts[i][j] = v_begin_dots(0);
        }
    }
    for (; n > 0; n -= ATTN_CODE_ROWS, t->x += ATTN_CODE_ROWS) {
        add_halves(t, shorts, n_rows, n_vec, 0, true);
        t->codes += QUADS * QUAD_ROW;
    }
    UNROLLED for (int i = 0; i < n_rows; i++)
    {
        UNROLLED for (int j = 0; j < n_vec; j++)
        {
            dots[i][j] = v_add_shorts(dots[i][j], shorts[i][j]);
        }
    }
}

/* dots = the products of the next part, of n rows of W. */
static INLINE void
multiply_part(tile_parts *t, v_dots dots[][PANEL_VECTORS], const int n_rows,
              const int n_vec, ptrdiff_t n, const bool pairs, const bool shorts)
{
    UNROLLED for (int i = 0; i < n_rows; i++)
    {
        UNROLLED for (int j = 0; j < n_vec; j++)
        {
            dots[i][j] = v_begin_dots(t->begins[i * t->n_parts]);
        }
    }
    t->begins++;
    for (; shorts && n > 0; n -= SHORTS_ROWS) {
        add_shorts(t, dots, n_rows, n_vec, n < SHORTS_ROWS ? n : SHORTS_ROWS);
    }
    for (; n > 0; n -= ATTN_CODE_ROWS, t->x += ATTN_CODE_ROWS) {
        if (pairs) {
            add_pairs(t, dots, n_rows, n_vec);
        } else {
            UNROLLED for (int q = 0; q < QUADS; q++)
            {
                add_halves(t, dots, n_rows, n_vec, q, false);
            }
        }
        t->codes += QUADS * QUAD_ROW;
    }
}

/* The output += these products, of one line of each row or two, times scales, and minimums. */
static INLINE void
add_to_output(tile_parts *t, v_dots dots[][PANEL_VECTORS], const int n_rows,
              const int n_digits, const int n_vec)
{
    v_real sums[INT8_ROWS][PANEL_VECTORS];

    UNROLLED for (int i = 0; i < n_rows; i++)
    {
        const v_real s = v_set1(t->scales[i * t->n_parts]);
        UNROLLED for (int j = 0; j < n_vec; j++)
        {
            sums[i][j] = add_scaled(s, v_load(t->factors + j * LANES), n_digits == 1,
                                    join_digits(dots + i * n_digits, n_digits, j),
                                    v_load(t->output + i * OUTPUT_ROW + j * LANES));
        }
    }
    t->scales++;
    t->factors += PANEL;
    if (t->minimums != NULL) {
        UNROLLED for (int i = 0; i < n_rows; i++)
        {
            const v_real by = v_set1(t->minimum_by[i * t->n_parts]);
            UNROLLED for (int j = 0; j < n_vec; j++)
            {
                sums[i][j] = v_fma(v_load(t->minimums + j * LANES), by, sums[i][j]);
            }
        }
        t->minimum_by++;
        t->minimums += PANEL;
    }
    UNROLLED for (int i = 0; i < n_rows; i++)
    {
        UNROLLED for (int j = 0; j < n_vec; j++)
        {
            v_store(t->output + i * OUTPUT_ROW + j * LANES, sums[i][j]);
        }
    }
    v_keep_stores();
}

/* All parts. `shorts`: products are added up in 16 bits. */
static INLINE void
add_parts_of_tile(const integer_product *m, tile_parts t, const int n_rows,
                  const int n_vec, const bool pairs, const bool shorts)
{
    for (ptrdiff_t left = m->n, part = m->part; left > 0; left -= part) {
        v_dots dots[INT8_ROWS][PANEL_VECTORS];
        multiply_part(&t, dots, n_rows, n_vec, left < part ? left : part, pairs,
                      shorts);
        add_to_output(&t, dots, n_rows, 1, n_vec);
    }
}

/* Sums of the output begin at 0. */
static INLINE void
begin_tile(const integer_product *m, const tile_parts *t, const int n_rows,
           const int n_vec)
{
    for (int i = 0; m->is_first && i < n_rows; i++) {
        memset(t->output + i * OUTPUT_ROW, 0, (size_t)(n_vec * LANES) * sizeof(float));
    }
}

/* n_rows of x from row r on, and n_vec vectors of columns from `column` on. `pairs`: codes are
 * narrow. */
static INLINE void
add_rounded_tile(const integer_product *m, const int n_rows, const int n_vec,
                 ptrdiff_t r, ptrdiff_t column, const bool pairs)
{
    tile_parts t = parts_of_tile(m, r, column);
    v_real sums[INT8_ROWS][PANEL_VECTORS];

    attn_count_path(ATTN_PATH_ROUNDED_TILES);
    begin_tile(m, &t, n_rows, n_vec);
    if (pairs && m->bits == 4) {
        attn_count_path(ATTN_PATH_ROUNDED_TILE_SHORTS);
        add_parts_of_tile(m, t, n_rows, n_vec, true, true);
    } else {
        add_parts_of_tile(m, t, n_rows, n_vec, pairs, false);
    }
    load_outputs(m, sums, n_rows, n_vec, r, column, false);
    store_outputs(m, sums, n_rows, n_vec, r, column);
}
#else
enum { HAS_ROUNDED_TILES = false };

static INLINE void
add_rounded_tile(const integer_product *m, const int n_rows, const int n_vec,
                 ptrdiff_t r, ptrdiff_t column, const bool pairs)
{
    (void)m, (void)n_rows, (void)n_vec, (void)r, (void)column, (void)pairs;
}
#endif

#endif
