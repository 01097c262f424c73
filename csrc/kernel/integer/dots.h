/* Products by vectors of x, rows that are rounded or split into digits, (n_rows, rows of W), with
 * codes of a panel, (rows of W, columns). Integers are added up within a part, parts as floats. */
#ifndef ATTN_KERNEL_INTEGER_DOTS_H
#define ATTN_KERNEL_INTEGER_DOTS_H

#include "kernel/integer/crossed.h"
#include "kernel/integer/digits.h"

enum {
    FLOAT_LINES = FLOAT_ROWS * DIGITS,
    MOST_LINES = FLOAT_LINES > INT8_ROWS ? FLOAT_LINES : INT8_ROWS,
    MOST_TILE_ROWS = FLOAT_ROWS > INT8_ROWS ? FLOAT_ROWS : INT8_ROWS,
    COLUMNS_FIRST = READY_FIRST &&
        !ARE_BYTES,                     /* of codes that fill the first-level cache */
    CONVERTS_FOR_FLOATS = COLUMNS_FIRST /* factors, whatever the number of rows */
};

/* n_rows of x from row r on, each of n_digits lines of terms, and n_vec vectors of columns from
 * `column` on. If it makes codes ready, these are stored for the other rows. Several rows prefetch
 * with each step, from `next` on; a row alone where that is faster. `pairs`: quads of narrow codes
 * are multiplied two by two. */
static INLINE void
add_dots(const integer_product *m, const int n_rows, const int n_digits,
         const int n_vec, ptrdiff_t r, ptrdiff_t column, const code_form form,
         const bool makes, const bool pairs, const char *next)
{
    const ptrdiff_t first = column * ATTN_QUAD, step = step_of(form);
    const int n_lines = n_rows * n_digits;
    const int n_quads = quads_of(form), n_terms = n_quads * ATTN_QUAD;
    const char *codes = form == READY ? (const char *)((const code *)m->ready + first)
                                      : (const char *)m->codes + first;
    code *ready = (code *)m->ready + first;
    const v_table table = table_of(m, form);
    const bool takes_long = n_digits > 1 || m->scale.coarse != NULL;
    /* Begins of rows with codes of 8 bits are those of crossed products then. */
    const bool begins_at_0 = HAS_CROSSED && form == READY && n_digits == 1 && !pairs;
    const term *x = m->terms + r * n_digits * m->row;
    const int32_t *begins = m->begins + r * n_digits * m->n_parts;
    v_real sums[MOST_TILE_ROWS][PANEL_VECTORS];

    load_outputs(m, sums, n_rows, n_vec, r, column, m->is_first);
    for (ptrdiff_t p = 0, left = m->n; left > 0; p++, left -= m->part) {
        v_dots dots[MOST_LINES][PANEL_VECTORS];
        UNROLLED for (int i = 0; i < n_lines; i++)
        {
            UNROLLED for (int j = 0; j < n_vec; j++)
            {
                dots[i][j] = v_begin_dots(begins_at_0 ? 0 : begins[i * m->n_parts + p]);
            }
        }
        for (ptrdiff_t k = left < m->part ? left : m->part; k > 0;
             k -= n_terms, codes += step, x += n_terms) {
            packed_step packed[PANEL_VECTORS];
            if (form != READY && n_rows == 1) {
                next = stream_step(packed, codes, n_vec, form, takes_long, next);
            } else if (form != READY) {
                load_step(packed, codes, n_vec, form);
            }
            UNROLLED for (int q = 0; q < n_quads; q += pairs ? 2 : 1)
            {
                const code *row = (const code *)(const void *)codes + q * QUAD_ROW;
                v_four four[MOST_LINES];
                UNROLLED for (int i = 0; i < n_lines; i++)
                {
                    four[i] = v_load_four(x + i * m->row + q * ATTN_QUAD);
                }
                UNROLLED for (int j = 0; j < n_vec; j++)
                {
                    const ptrdiff_t at = j * VECTOR_CODES;
                    v_quads w = form == READY ? v_load_ready(row + at)
                                : pairs ? pair_in(&packed[j], q, form)
                                        : ready_quads_in(&packed[j], q, form, table);
                    if (makes) {
                        v_store_ready(ready + q * QUAD_ROW + at, w);
                    }
                    UNROLLED for (int i = 0; i < n_lines; i++)
                    {
                        dots[i][j] = add_quads(dots[i][j], w, four[i], pairs);
                    }
                }
            }
            ready += n_quads * QUAD_ROW;
            next = prefetch_lines(
                next, n_rows == 1 ? 0 : QUAD_ROW / CACHE_LINE * n_quads / QUADS);
        }
        ptrdiff_t block = block_of(m, p);
        UNROLLED for (int j = 0; j < n_vec; j++)
        {
            part_factors f = load_part(m, p, block, column + j * LANES,
                                       form == READY || makes ||
                                           (CONVERTS_FOR_FLOATS && n_digits > 1),
                                       READY_FIRST ? n_digits > 1 : !ARE_BYTES);
            UNROLLED for (int i = 0; i < n_rows; i++)
            {
                v_real products = join_digits(dots + i * n_digits, n_digits, j);
                sums[i][j] =
                    add_part(m, f, r + i, p, n_digits == 1, products, sums[i][j]);
            }
        }
    }
    store_outputs(m, sums, n_rows, n_vec, r, column);
}

/* All columns of one row. */
static INLINE void
add_row_of_integers(const integer_product *m, const int n_digits, const int one,
                    ptrdiff_t r, const code_form form, const bool pairs)
{
    const char *next = (const char *)m->codes + (n_digits > 1 ? FLOAT_AHEAD : AHEAD);

    for (ptrdiff_t k = 0; k < PANEL; k += one * LANES) {
        add_dots(m, 1, n_digits, one, r, k, form, false, pairs, next);
    }
}

/* n columns of a tile from row r on. Every tile prefetches a part of the next chunk of codes, which
 * lie behind these. */
static INLINE void
add_tile_of_integers(const integer_product *m, const int n_rows, const int n_digits,
                     const int n_vec, ptrdiff_t r, ptrdiff_t column, const ptrdiff_t n,
                     const code_form form, const bool makes, const bool pairs)
{
    ptrdiff_t n_bytes = m->n / ATTN_CODE_ROWS * QUAD_ROW; /* 4 bits of each code */
    ptrdiff_t n_shares = (m->bits + 3) / 4, share = r / n_rows % n_shares;
    const char *next = (const char *)m->codes + n_bytes * m->bits / 4 + share * n_bytes;

    for (ptrdiff_t k = column; k < column + n; k += n_vec * LANES) {
        add_dots(m, n_rows, n_digits, n_vec, r, k, form, makes, pairs, next);
    }
}

/* The first tile, which makes codes ready. */
static INLINE void
add_first_tile(const integer_product *m, const int n_rows, const int n_digits,
               const int n_vec, const code_form form)
{
    add_tile_of_integers(m, n_rows, n_digits, n_vec, 0, 0, PANEL, form, true, false);
}

/* Tiles of rows from r on, until fewer than n_rows are left of n; returns which row is next. */
static INLINE ptrdiff_t
add_tiles_of_integers(const integer_product *m, const int n_rows, const int n_digits,
                      const int n_vec, ptrdiff_t r, ptrdiff_t n, const code_form form,
                      const bool pairs)
{
    const ptrdiff_t columns = COLUMNS_FIRST ? n_vec * LANES : PANEL;
    ptrdiff_t end = r;

    for (ptrdiff_t k = 0; k < PANEL; k += columns) {
        for (end = r; n - end >= n_rows; end += n_rows) {
            if (HAS_CROSSED && form == READY && n_digits == 1 && !pairs &&
                m->own != NULL) {
                add_crossed_tile(m, end, k);
            } else if (HAS_ROUNDED_TILES && form == READY && n_digits == 1) {
                add_rounded_tile(m, n_rows, n_vec, end, k, pairs);
            } else {
                add_tile_of_integers(m, n_rows, n_digits, n_vec, end, k, columns, form,
                                     false, pairs);
            }
        }
    }
    return end;
}

/* All of n rows: many in tiles, and each row that is left alone. The first tile makes codes ready,
 * unless they are ready before, or all tiles read them as they lie. */
static INLINE void
add_rows_of_integers(const integer_product *m, const int n_rows, const int n_digits,
                     const int n_vec, const int one, ptrdiff_t n, code_form form)
{
    const bool pairs = PAIRS && n_digits == 1;
    const bool are_pairs = pairs && is_narrow(form);
    ptrdiff_t r = 0;

    if (form != READY && (READY_FIRST || form == CODES_OF_VALUES) && n >= SHARED_FROM) {
        make_ready(m, form, are_pairs);
        form = READY;
    }
    if (form == CODES_8 && ARE_BYTES && !READY_FIRST) {
        r = add_tiles_of_integers(m, n_rows, n_digits, n_vec, r, n, CODES_8, false);
    } else if (form != READY && !READY_FIRST && n >= SHARED_FROM && n >= n_rows) {
        switch (form) {
        case CODES_8: add_first_tile(m, n_rows, n_digits, n_vec, CODES_8); break;
        case CODES_6: add_first_tile(m, n_rows, n_digits, n_vec, CODES_6); break;
        case CODES_5: add_first_tile(m, n_rows, n_digits, n_vec, CODES_5); break;
        default: add_first_tile(m, n_rows, n_digits, n_vec, CODES_4);
        }
        r = n_rows;
        form = READY;
    }
    if (form == READY && are_pairs) {
        r = add_tiles_of_integers(m, n_rows, n_digits, n_vec, r, n, READY, pairs);
    } else if (form == READY) {
        r = add_tiles_of_integers(m, n_rows, n_digits, n_vec, r, n, READY, false);
    }
    for (; r < n; r++) {
        switch (form) {
        case CODES_8: add_row_of_integers(m, n_digits, one, r, CODES_8, false); break;
        case CODES_6: add_row_of_integers(m, n_digits, one, r, CODES_6, pairs); break;
        case CODES_5: add_row_of_integers(m, n_digits, one, r, CODES_5, pairs); break;
        case CODES_4: add_row_of_integers(m, n_digits, one, r, CODES_4, pairs); break;
        case CODES_OF_VALUES:
            add_row_of_integers(m, n_digits, one, r, CODES_OF_VALUES, false);
            break;
        case READY:
            if (n_rows > 1 && are_pairs) { /* or all are in tiles */
                add_row_of_integers(m, n_digits, one, r, READY, pairs);
            } else if (n_rows > 1) {
                add_row_of_integers(m, n_digits, one, r, READY, false);
            }
            break;
        }
    }
}

/* All products of n rows with a chunk of a panel: rows that are rounded to 8 bits, or split into
 * digits. */
static NOINLINE void
add_rounded_rows(const integer_product *m, ptrdiff_t n, code_form form)
{
    add_rows_of_integers(m, INT8_ROWS, 1, INT8_REALS, INT8_ONE, n, form);
}

static NOINLINE void
add_split_rows(const integer_product *m, ptrdiff_t n, code_form form)
{
    if (HAS_SPLIT_BYTES && m->n_digits == SPLIT_BYTES) {
        add_split_bytes(m, n, form);
        return;
    }
    add_rows_of_integers(m, FLOAT_ROWS, DIGITS, FLOAT_REALS, FLOAT_ONE, n, form);
}

_Static_assert(PANEL_VECTORS % INT8_REALS == 0 && PANEL_VECTORS % INT8_ONE == 0 &&
                   PANEL_VECTORS % FLOAT_REALS == 0 && PANEL_VECTORS % FLOAT_ONE == 0,
               "whole tiles");

#endif
