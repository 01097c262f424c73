/* The codes, scales and minimums of a chunk of a panel, as they lie in memory. */
#ifndef ATTN_KERNEL_INTEGER_WEIGHTS_H
#define ATTN_KERNEL_INTEGER_WEIGHTS_H

#include "kernel/integer/sizes.h"

enum {
    VECTOR_CODES = LANES * ATTN_QUAD,   /* of LANES columns' quads */
    QUADS = ATTN_CODE_ROWS / ATTN_QUAD, /* of a column in a step, at least */
    MOST_CODE_ROWS = 5,                 /* of such quads in a step, packed: of 5 bits */
    CACHE_LINE = 64,                    /* bytes */
    /* How many bytes ahead codes are prefetched beside a rounded row, and a split one; and
     * factors, which have fewer bytes: */
    AHEAD = 6144,
    FLOAT_AHEAD = 8192,
    FACTORS_AHEAD = 4096
};

/* Bits of narrow codes that are above the fourth. */
static INLINE int
bits_above(const code_form form)
{
    return form == CODES_6 ? 2 : form == CODES_5 ? 1 : 0;
}

static INLINE bool
is_narrow(const code_form form)
{
    return form == CODES_4 || form == CODES_5 || form == CODES_6;
}

/* Quads of a column in a step, which is a unit of packed codes. Where codes have bits above the
 * fourth, a byte holds those of as many codes. */
static INLINE int
quads_of(const code_form form)
{
    return bits_above(form) > 0 ? 8 / bits_above(form) : QUADS;
}

/* QUAD_ROWs of packed codes of a step. */
static INLINE int
rows_of_quads(const code_form form)
{
    return form == CODES_8 ? QUADS : quads_of(form) / 2 + (bits_above(form) > 0);
}

/* Prefetches n lines; returns where the next one is. */
static INLINE const char *
prefetch_lines(const char *next, const int n)
{
    UNROLLED for (int i = 0; i < n; i++, next += CACHE_LINE)
    {
        __builtin_prefetch(next, 0, 2);
    }
    return next;
}

/* LANES columns' packed codes of a step. */
typedef struct {
    v_codes rows[MOST_CODE_ROWS];
} packed_step;

/* Loads a step of n_vec vectors of columns. */
static INLINE void
load_step(packed_step *w, const char *codes, const int n_vec, const code_form form)
{
    UNROLLED for (int i = 0; i < rows_of_quads(form); i++, codes += QUAD_ROW)
    {
        UNROLLED for (int j = 0; j < n_vec; j++)
        {
            w[j].rows[i] = v_load_codes(codes + j * VECTOR_CODES);
        }
    }
}

/* The same for a row alone, which waits for memory. CPUs prefetch lines that are read in order by
 * themselves, faster than they are told to; but bits above are needed before what lies before them,
 * and where a step or a part takes long they do not look far enough ahead. Returns what to prefetch
 * next. */
static INLINE const char *
stream_step(packed_step *w, const char *codes, const int n_vec, const code_form form,
            bool takes_long, const char *next)
{
    load_step(w, codes, n_vec, form);
    bool keeps = v_keep_loads();
    if (!(takes_long && form != CODES_8) && (keeps || bits_above(form) == 0)) {
        return next;
    }
    return prefetch_lines(next, QUAD_ROW * rows_of_quads(form) / CACHE_LINE);
}

/* Quads number i of them. */
static INLINE v_codes
quads_in(const packed_step *w, const int i, const code_form form)
{
    return form == CODES_8
               ? w->rows[i]
               : v_narrow_codes(w->rows[i / 2], w->rows[rows_of_quads(form) - 1], i,
                                bits_above(form));
}

/* The same, ready for products; `table` has the values of codes that stand for values. */
static INLINE v_quads
ready_quads_in(const packed_step *w, const int i, const code_form form, v_table table)
{
    v_codes codes = quads_in(w, i, form);

    return form == CODES_OF_VALUES ? v_look_up(table, codes)
                                   : v_quads_of(codes, form == CODES_8);
}

/* Does the vocabulary multiply quads of narrow codes two by two, if rows are rounded? */
#if defined(PAIRS_NARROW)
enum { PAIRS = true };

/* Quads i and i + 1 of narrow codes, for add_quads. */
static INLINE v_quads
pair_in(const packed_step *w, const int i, const code_form form)
{
    return v_pair_of(quads_in(w, i, form), quads_in(w, i + 1, form));
}

static INLINE v_dots
add_quads(v_dots sum, v_quads w, v_four x, const bool pairs)
{
    return pairs ? v_add_pair_dots(sum, w, x) : v_add_dots(sum, w, x);
}

/* Makes n terms of x those of pairs of narrow quads. */
static INLINE void
narrow_terms(term *x, ptrdiff_t n)
{
    for (ptrdiff_t k = 0; k < n; k += 2 * ATTN_QUAD) {
        v_narrow_terms(x + k);
    }
}
#else
enum { PAIRS = false };

static INLINE v_quads
pair_in(const packed_step *w, const int i, const code_form form)
{
    return v_quads_of(quads_in(w, i, form), false);
}

static INLINE v_dots
add_quads(v_dots sum, v_quads w, v_four x, const bool pairs)
{
    (void)pairs;
    return v_add_dots(sum, w, x);
}

static INLINE void
narrow_terms(term *x, ptrdiff_t n)
{
    (void)x, (void)n;
}
#endif

/* Scales or minimums of group number p of a chunk, from a column of its panel on. None of them are
 * powers of two. */
static INLINE v_real
load_factors(const attn_factors *f, ptrdiff_t p, ptrdiff_t column, ptrdiff_t block)
{
    ptrdiff_t at = p * PANEL + column;

    if (f->coarse != NULL) {
        const int8_t *fine = (const int8_t *)f->fine + at;
        __builtin_prefetch(fine + FACTORS_AHEAD, 0, 2);
        return v_mul(v_load_f16(f->coarse + block * PANEL + column), v_load_i8(fine));
    }
    if (f->dtype == ATTN_F16) {
        const uint16_t *fine = (const uint16_t *)(const void *)f->fine + at;
        __builtin_prefetch(fine + FACTORS_AHEAD / 2, 0, 2);
        return v_load_f16(fine);
    }
    return v_load((const float *)(const void *)f->fine + at);
}

#endif
