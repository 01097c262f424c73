/* The codes, scales and minimums of a chunk of a panel: n parts of a panel's columns. */
#ifndef ATTN_KERNEL_INTEGER_WEIGHTS_H
#define ATTN_KERNEL_INTEGER_WEIGHTS_H

#include "kernel/integer/task.h"

enum {
    QUADS_CODES = LANES * ATTN_QUAD / DOTS, /* of a vector of quads */
    BYTES_CODES = LANES * ATTN_QUAD,        /* of a vector of bytes, for floats */
    AHEAD =
        4096 /* bytes: what one row takes from memory is prefetched that far ahead */
};

/* Makes n rows of codes ready for products of integers. */
static void
make_codes_ready(code *to, const attn_quantized *q, const char *from, ptrdiff_t n)
{
    for (ptrdiff_t k = 0; k < n; k += ATTN_CODE_ROWS, to += 2 * QUAD_ROW) {
        for (int i = 0; i < QUAD_ROW; i += QUADS_CODES) {
            bool wide = q->bits == 8;
            v_quads lower =
                wide ? v_load_quads(from + i) : v_lower_quads(from + i, q->zero);
            v_quads upper = wide ? v_load_quads(from + QUAD_ROW + i)
                                 : v_upper_quads(from + i, q->zero);
            v_store_ready(to + i, lower);
            v_store_ready(to + QUAD_ROW + i, upper);
        }
        from += QUAD_ROW * q->bits / 4;
    }
}

/* The floats of LANES columns in four rows. */
static INLINE void
store_codes(float *to, v_bytes bytes)
{
    UNROLLED for (int t = 0; t < ATTN_QUAD; t++)
    {
        v_store(to + t * PANEL, v_float_codes(bytes, t));
    }
}

/* The same for products of floats. */
static void
make_floats_ready(float *to, const attn_quantized *q, const char *from, ptrdiff_t n)
{
    for (ptrdiff_t k = 0; k < n; k += ATTN_CODE_ROWS, to += 2 * QUAD_ROW) {
        for (int i = 0; i < PANEL; i += LANES) {
            const char *at = from + i * ATTN_QUAD;
            bool wide = q->bits == 8;
            store_codes(to + i, wide ? v_load_bytes(at) : v_lower_bytes(at, q->zero));
            store_codes(to + QUAD_ROW + i, wide ? v_load_bytes(at + QUAD_ROW)
                                                : v_upper_bytes(at, q->zero));
        }
        from += QUAD_ROW * q->bits / 4;
    }
}

/* The codes of n rows of W, from a part on: where they lie, or ready for many rows of x. */
static const void *
fetch_codes(integer_work *w, ptrdiff_t panel, ptrdiff_t part, ptrdiff_t n,
            code_form form)
{
    const attn_quantized *q = w->q;
    ptrdiff_t at = (panel * w->n_code_rows + part * w->part) * PANEL;
    const char *from = q->codes + at * q->bits / 8;

    if (form != READY || w->ready == NULL) {
        return from;
    }
    if (q->rounds_rows) {
        make_codes_ready(w->ready, q, from, n);
        memset((code *)w->ready + n * PANEL, 0, BEYOND * PANEL * sizeof(code));
    } else {
        make_floats_ready(w->ready, q, from, n);
    }
    return w->ready;
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
