/* The codes, scales and minimums of a chunk of a panel: n parts of a panel's columns. */
#ifndef ATTN_KERNEL_INTEGER_WEIGHTS_H
#define ATTN_KERNEL_INTEGER_WEIGHTS_H

#include "kernel/integer/task.h"

enum {
    QUADS_CODES = LANES * ATTN_QUAD / DOTS, /* of a vector of quads */
    BYTES_CODES = LANES * ATTN_QUAD,        /* of a vector of bytes, for floats */
    QUADS = ATTN_CODE_ROWS / ATTN_QUAD,     /* of a column in a step, at least */
    LINE = 64,                              /* bytes that are prefetched at a time, */
    AHEAD = 4096 /* and that far ahead of what one row takes from memory */
};

/* Bits of narrow codes that are above the fourth. */
static INLINE int
bits_above(const code_form form)
{
    return form == CODES_6 ? 2 : form == CODES_5 ? 1 : 0;
}

/* Quads of a column in a step, which is a unit of packed codes: as many as a byte has of such
 * bits. */
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

/* LANES columns' quads number i of a step, of packed codes, from a column on. */
static INLINE v_bytes
load_bytes(const char *codes, const int i, const code_form form, int zero)
{
    const char *above = codes + quads_of(form) / 2 * QUAD_ROW;

    return form == CODES_8 ? v_load_bytes(codes + i * QUAD_ROW)
                           : v_narrow_bytes(codes + i / 2 * QUAD_ROW, above, i,
                                            bits_above(form), zero);
}

/* The same for products of integers, of LANES / DOTS columns. */
static INLINE v_quads
load_quads(const char *codes, const int i, const code_form form, int zero)
{
    const char *above = codes + quads_of(form) / 2 * QUAD_ROW;

    return form == CODES_8 ? v_load_quads(codes + i * QUAD_ROW)
                           : v_narrow_quads(codes + i / 2 * QUAD_ROW, above, i,
                                            bits_above(form), zero);
}

/* n numbers of float16, as floats; the next ones in memory are a later chunk's. */
static void
convert_halves(float *to, const uint16_t *from, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += LANES) {
        __builtin_prefetch(from + i + AHEAD / 2, 0, 2);
        v_store(to + i, v_load_f16(from + i));
    }
}

/* A panel's factors of n groups that have two levels. */
static void
multiply_levels(const integer_work *w, const attn_factors *f, ptrdiff_t panel,
                ptrdiff_t group, ptrdiff_t n, float *to)
{
    ptrdiff_t n_groups = attn_divide_up(w->l->n_in, w->q->group);
    ptrdiff_t each = w->q->groups_per_block;
    const int8_t *fine = (const int8_t *)f->fine + (panel * n_groups + group) * PANEL;
    const uint16_t *blocks = f->coarse + panel * attn_divide_up(n_groups, each) * PANEL;

    for (ptrdiff_t g = group; g < group + n; g++, to += PANEL, fine += PANEL) {
        const uint16_t *coarse = blocks + g / each * PANEL;
        __builtin_prefetch(fine + AHEAD, 0, 2);
        __builtin_prefetch(coarse + AHEAD / 2, 0, 2);
        for (int i = 0; i < PANEL; i += LANES) {
            v_real x = v_float_bytes(fine + i);
            v_store(to + i, v_mul(v_load_f16(coarse + i), x));
        }
    }
}

/* A panel's scales or minimums of n groups: where they lie, or in `to`. */
static const float *
fetch_factors(const integer_work *w, const attn_factors *f, ptrdiff_t panel,
              ptrdiff_t group, ptrdiff_t n, float *to)
{
    ptrdiff_t n_groups = attn_divide_up(w->l->n_in, w->q->group);
    ptrdiff_t at = (panel * n_groups + group) * PANEL;

    if (f->coarse != NULL) {
        multiply_levels(w, f, panel, group, n, to);
    } else if (f->dtype == ATTN_F32) {
        return (const float *)(const void *)f->fine + at;
    } else {
        convert_halves(to, (const uint16_t *)(const void *)f->fine + at, n * PANEL);
    }
    return to;
}

#endif
