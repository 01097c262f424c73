/* The codes, scales and minimums of a part of a panel. */
#ifndef ATTN_KERNEL_INTEGER_WEIGHTS_H
#define ATTN_KERNEL_INTEGER_WEIGHTS_H

#include "kernel/integer/task.h"

/* to = codes of n rows, from 4 bits. */
static void
unpack_codes(int8_t *to, const uint8_t *from, ptrdiff_t n, int zero)
{
    for (ptrdiff_t k = 0; k < n; k += ATTN_CODE_ROWS, from += QUAD_ROW) {
        for (int i = 0; i < QUAD_ROW; i++) {
            to[i] = (int8_t)((from[i] & 15) - zero);
            to[i + QUAD_ROW] = (int8_t)((from[i] >> 4) - zero);
        }
        to += 2 * QUAD_ROW;
    }
}

/* The codes of a part of a panel, n rows, as bytes: where they lie, or unpacked. */
static const int8_t *
fetch_codes(integer_work *w, ptrdiff_t panel, ptrdiff_t part, ptrdiff_t n)
{
    const attn_quantized *q = w->q;
    ptrdiff_t at = (panel * w->n_code_rows + part * w->part) * PANEL;

    if (q->bits == 8) {
        return (const int8_t *)q->codes + at;
    }
    unpack_codes(w->codes, (const uint8_t *)q->codes + at / 2, n, q->zero);
    return w->codes;
}

/* A panel's scales or minimums of a group: where they lie, or in `to`. */
static const float *
fetch_factors(const integer_work *w, const attn_factors *f, ptrdiff_t panel,
              ptrdiff_t group, float *to)
{
    ptrdiff_t n_groups = attn_divide_up(w->l->n_in, w->q->group);
    ptrdiff_t each = w->q->groups_per_block;
    ptrdiff_t at = (panel * n_groups + group) * PANEL;
    const uint16_t *half = f->coarse;

    if (half == NULL && f->dtype == ATTN_F32) {
        return (const float *)(const void *)f->fine + at;
    }
    half = half == NULL
               ? (const uint16_t *)(const void *)f->fine + at
               : half + (panel * attn_divide_up(n_groups, each) + group / each) * PANEL;
    for (int i = 0; i < PANEL; i += LANES) {
        v_store(to + i, v_load_f16(half + i));
    }
    for (int i = 0; i < PANEL && f->coarse != NULL; i++) {
        to[i] *= (float)((const int8_t *)f->fine)[at + i];
    }
    return to;
}

#endif
