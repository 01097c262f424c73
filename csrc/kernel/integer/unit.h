/* Products of many rows on a matrix unit, for the kernel that makes integers of them. Sums of a
 * part go through memory, where they become floats and are added to the output. An isa/ file
 * chooses the vocabularies, then includes this. */
#ifndef ATTN_KERNEL_INTEGER_UNIT_H
#define ATTN_KERNEL_INTEGER_UNIT_H

#include "kernel/integer/product.h"

/* Makes packed codes ready, less zero. */
static INLINE void
unpack_codes(const integer_product *m, const code_form form)
{
    const ptrdiff_t step = step_of(form);
    const char *from = m->codes;
    code *to = m->ready;
    const v_table table = table_of(m, form);

    for (ptrdiff_t k = m->n; k > 0; k -= quads_of(form) * ATTN_QUAD, from += step) {
        packed_step w[PANEL_VECTORS];
        load_step(w, from, PANEL_VECTORS, form);
        UNROLLED for (int i = 0; i < quads_of(form); i++, to += QUAD_ROW)
        {
            UNROLLED for (int j = 0; j < PANEL_VECTORS; j++)
            {
                v_codes codes = form == CODES_OF_VALUES
                                    ? ready_quads_in(&w[j], i, form, table)
                                    : quads_in(&w[j], i, form);
                u_store_codes(to + j * VECTOR_CODES, codes,
                              form == CODES_OF_VALUES ? OFFSET : m->zero);
            }
        }
    }
}

/* Makes codes ready, with zeros beyond their rows. Those of 8 bits are as they lie, unless their
 * last step lacks rows. */
static void
make_codes_ready(integer_product *m, code_form form, int step)
{
    if (form == CODES_8 && m->n % step == 0) {
        m->ready = (void *)m->codes;
        return;
    }
    switch (form) {
    case CODES_6: unpack_codes(m, CODES_6); break;
    case CODES_5: unpack_codes(m, CODES_5); break;
    case CODES_4: unpack_codes(m, CODES_4); break;
    case CODES_OF_VALUES: unpack_codes(m, CODES_OF_VALUES); break;
    case CODES_8:
    case READY: memcpy(m->ready, m->codes, (size_t)(m->n * PANEL)); break;
    }
    memset((code *)m->ready + m->n * PANEL, 0, BEYOND * PANEL);
}

/* Terms of a step: each part but a chunk's last has whole steps. What that one lacks are zeros
 * among the ready codes, whatever x is there. */
static int
unit_step(ptrdiff_t part)
{
    return part % UNIT_STEP == 0 ? UNIT_STEP : part % 32 == 0 ? 32 : 16;
}

/* Sums of this many parts and lines of UNIT_ROWS rows are in memory at once. Vectors multiply
 * slower for some hundred cycles after the unit has, so they take turns no more often than this. */
enum {
    LINES_AT_ONCE = 6,
    LINE_SUMS = UNIT_ROWS * UNIT_SUMS,
    BAND = 4,           /* rows whose sums are added up at a time */
    PREFETCHED_FROM = 2 /* so many UNIT_ROWS that share a chunk */
};

/* Rows and parts whose sums are (n_parts, n_digits, UNIT_ROWS, UNIT_SUMS). */
typedef struct {
    ptrdiff_t r, n_rows, part, n_parts;
    const char *next;  /* codes of the next chunk, */
    ptrdiff_t n_lines; /* of which each row prefetches so many lines */
} unit_block;

/* output += the sums of n_rows rows from row r of the block on. */
static INLINE void
add_band(const integer_product *m, unit_block b, ptrdiff_t r, const int n_rows,
         const int n_digits, const int32_t *sums)
{
    v_real outputs[BAND][PANEL_VECTORS];
    ptrdiff_t end = b.part + b.n_parts;

    load_outputs(m, outputs, n_rows, PANEL_VECTORS, b.r + r, 0,
                 m->is_first && b.part == 0);
    sums += r * UNIT_SUMS;
    for (ptrdiff_t p = b.part; p < end; p++, sums += n_digits * LINE_SUMS) {
        UNROLLED for (int j = 0; j < PANEL_VECTORS; j++)
        {
            part_factors f = load_part(m, p, 0, j * LANES, true, false);
            UNROLLED for (int i = 0; i < n_rows; i++)
            {
                const int32_t *from = sums + i * UNIT_SUMS + j * LANES;
                v_dots dots[DIGITS][PANEL_VECTORS];
                UNROLLED for (int d = 0; d < n_digits; d++, from += LINE_SUMS)
                {
                    dots[d][j] = v_load_dots(from);
                }
                v_real products = join_digits(dots, n_digits, j);
                outputs[i][j] = add_part(m, f, b.r + r + i, p, n_digits == 1, products,
                                         outputs[i][j]);
                ONE_BY_ONE; /* or compilers load all sums before they add one */
            }
        }
    }
    store_outputs(m, outputs, n_rows, PANEL_VECTORS, b.r + r, 0);
}

/* output += their sums. Rows of one line are added in bands, which share the factors. */
static INLINE void
add_unit_sums(const integer_product *m, unit_block b, const int n_digits,
              const int32_t *sums)
{
    for (ptrdiff_t r = 0, n; r < b.n_rows; r += n) {
        n = n_digits == 1 && b.n_rows - r >= BAND ? BAND : 1;
        if (n == BAND) {
            add_band(m, b, r, BAND, n_digits, sums);
        } else {
            add_band(m, b, r, 1, n_digits, sums);
        }
        for (ptrdiff_t k = n * b.n_lines; k > 0; k--) {
            b.next = prefetch_lines(b.next, 1);
        }
    }
}

/* Begins the sums of a part of n rows of W, and multiplies lines of x by it. */
static INLINE void
multiply_part(const term *x, ptrdiff_t x_row, const code *codes, ptrdiff_t n,
              ptrdiff_t step, const bool other)
{
    u_clear(other);
    for (; n > 0; n -= step, x += step, codes += step * PANEL) {
        u_multiply(x, x_row, codes, other);
    }
}

/* The sums of a block, whose parts have n rows of W. Each line's are stored while the unit
 * multiplies the next one. All arguments are numbers in registers: what is read from memory may
 * wait for sums on their way there. */
static NOINLINE void
multiply_block(const term *x, ptrdiff_t row, ptrdiff_t n_digits, const code *codes,
               ptrdiff_t n, ptrdiff_t part, ptrdiff_t step, int32_t *sums)
{
    bool other = false, is_first = true;

    for (; n > 0; n -= part, x += part, codes += part * PANEL) {
        ptrdiff_t n_now = n < part ? n : part;
        for (ptrdiff_t d = 0; d < n_digits; d++, other = !other) {
            if (other) {
                multiply_part(x + d * row, n_digits * row, codes, n_now, step, true);
                u_store(sums, false);
                sums += LINE_SUMS;
            } else {
                multiply_part(x + d * row, n_digits * row, codes, n_now, step, false);
                if (!is_first) {
                    u_store(sums, true);
                    sums += LINE_SUMS;
                }
                is_first = false;
            }
        }
    }
    if (other) {
        u_store(sums, false);
    } else {
        u_store(sums, true);
    }
    u_publish(sums);
}

/* How many lines of the next chunk's codes, which lie behind these, each row of a block prefetches,
 * so that all of them are on their way in the end: tiles are loaded in an order that CPUs do not
 * foresee. None where few rows share a chunk: then products wait for memory, and prefetches with
 * them. */
static ptrdiff_t
lines_for_a_row(const integer_product *m, ptrdiff_t n, ptrdiff_t n_blocks)
{
    ptrdiff_t n_bytes = m->n * PANEL * m->bits / 8;
    ptrdiff_t n_tiles = attn_divide_up(n, UNIT_ROWS);
    ptrdiff_t n_rows = n_tiles * UNIT_ROWS * n_blocks;
    return n_tiles < PREFETCHED_FROM ? 0 : attn_divide_up(n_bytes, CACHE_LINE * n_rows);
}

/* All of n rows, whose codes are ready. */
static INLINE void
multiply_on_unit(const integer_product *m, ptrdiff_t n, int step)
{
    _Alignas(CACHE_LINE) int32_t sums[LINES_AT_ONCE * LINE_SUMS];
    ptrdiff_t n_parts = attn_divide_up(m->n, m->part);
    ptrdiff_t most = m->n_digits == 1 ? LINES_AT_ONCE : LINES_AT_ONCE / DIGITS;
    unit_block b = {.next = m->codes + m->n * PANEL * m->bits / 8};

    b.n_lines = lines_for_a_row(m, n, attn_divide_up(n_parts, most));
    for (b.r = 0; b.r < n; b.r += UNIT_ROWS) {
        b.n_rows = n - b.r < UNIT_ROWS ? n - b.r : UNIT_ROWS;
        for (b.part = 0; b.part < n_parts; b.part += b.n_parts) {
            ptrdiff_t at = b.part * m->part, left = m->n - at;
            b.n_parts = n_parts - b.part < most ? n_parts - b.part : most;
            multiply_block(m->terms + b.r * m->n_digits * m->row + at, m->row,
                           m->n_digits, (const code *)m->ready + at * PANEL,
                           left < most * m->part ? left : most * m->part, m->part, step,
                           sums);
            if (m->n_digits == 1) {
                add_unit_sums(m, b, 1, sums);
            } else {
                add_unit_sums(m, b, DIGITS, sums);
            }
            b.next += b.n_rows * b.n_lines * CACHE_LINE;
        }
    }
}

void INTEGER_UNIT(const void *product, ptrdiff_t n, int form);

/* All of n rows. */
void
INTEGER_UNIT(const void *product, ptrdiff_t n, int form)
{
    integer_product m = *(const integer_product *)product;
    int step = unit_step(m.part);

    make_codes_ready(&m, (code_form)form, step);
    u_publish(&m);
    u_begin(n < UNIT_ROWS ? (int)n : UNIT_ROWS, step);
    multiply_on_unit(&m, n, step);
    u_end();
}

_Static_assert((int)UNIT_SUMS == (int)PANEL, "a panel is three tiles wide");
_Static_assert((int)DIGITS <= (int)LINES_AT_ONCE, "room for all lines of a part");

#endif
