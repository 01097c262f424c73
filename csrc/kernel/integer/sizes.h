/* Sizes, and forms of codes, of all products with quantised matrices. */
#ifndef ATTN_KERNEL_INTEGER_SIZES_H
#define ATTN_KERNEL_INTEGER_SIZES_H

#include "core/linear.h"

enum {
    PANEL = ATTN_PANEL_COLUMNS,
    PANEL_VECTORS = PANEL / LANES,    /* vectors of a panel's columns */
    QUAD_ROW = PANEL * ATTN_QUAD,     /* bytes of a panel's quads of the same rows */
    OUTPUT_COLUMNS = 8 * PANEL,       /* that are stored at a time */
    OUTPUT_ROW = OUTPUT_COLUMNS + 16, /* not a multiple of 4 KB's divisors */
    MOST_ROWS = ATTN_INTEGER_ROWS,    /* that are loaded at a time; fewer where they */
    MOST_BYTES = 5 << 17,             /* would be larger, but at least LEAST_ROWS */
    LEAST_ROWS = 8,
    SHARED_FROM = 4,        /* rows; so many share a panel that is made ready once */
    LINES_FROM = 8,         /* rows of several lines that a matrix unit repays */
    CHUNK_BYTES = 24 << 10, /* of a panel, ready: it stays in the first-level cache */
    CONVERTED_PARTS = 32, /* of a panel, whose factors a row alone converts at a time */
    NUMBERS = 16          /* of a row, that are rounded at a time */
};

_Static_assert(PANEL % LANES == 0 && NUMBERS % LANES == 0, "whole vectors");

/* What a matrix unit reads beyond what is there: rows of W and numbers of x, which are not 0 where
 * the others are, and rows of x up to a multiple of UNIT_ROWS. */
#if defined(HAS_INTEGER_UNIT)
enum { HAS_UNIT = true, BEYOND = UNIT_STEP, WHOLE_ROWS = UNIT_ROWS };
#else
enum { HAS_UNIT = false, BEYOND = 0, WHOLE_ROWS = 1 };
#endif

/* Can two products be one, in crossed.h? */
#if !defined(HAS_CROSSED)
#define HAS_CROSSED 0
#endif

/* Can digits be bytes that are added up in 16 bits, in digits.h? */
#if !defined(HAS_SPLIT_BYTES)
#define HAS_SPLIT_BYTES 0
#endif

enum { SPLIT_BYTES = 3 }; /* of a number then; two are of its lower part */

/* Rows of W, with codes of 4 bits, whose products with bytes two sums of 16 bits hold. */
enum { SHORTS_ROWS = 32 };

enum { CROSSED_FROM = 16 }; /* rows; so many are worth what columns have of their own */

enum { ARE_BYTES = sizeof(code) == 1 }; /* codes that are ready */

/* Terms of a number of x that is not rounded to 8 bits, each in a line of its own. The first is its
 * upper part, the others are the digits of its lower part: two if terms are bytes, else one. */
enum { DIGITS = sizeof(term) == 1 ? 3 : 2 };

/* How codes are read: packed, of 8 to 4 bits, or of 4 bits that stand for values; or ready for
 * products, each a `code` of the vocabulary, (rows of W, PANEL). */
typedef enum { CODES_8, CODES_6, CODES_5, CODES_4, CODES_OF_VALUES, READY } code_form;

#endif
