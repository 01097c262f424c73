/* From products to logits: scale, soft cap, bias, and what a row may not see. */
#ifndef ATTN_KERNEL_ATTENTION_LOGITS_H
#define ATTN_KERNEL_ATTENTION_LOGITS_H

#include "kernel/math.h"

/* A block's scores: lines of n_vec vectors; tile form has a line for each key, row form
 * one for each row. */
typedef struct {
    real *at;
    ptrdiff_t line;       /* reals from line to line */
    const real *bias;     /* of the same lines and vectors; or NULL */
    ptrdiff_t bias_line;  /* reals from line to line */
    const uint64_t *bits; /* what may be seen, from the first lane on; or NULL */
    ptrdiff_t bits_line;  /* words from line to line */
    ptrdiff_t first_bit;  /* of the first lane */
    ptrdiff_t n_lines;
    int n_vec;
} strip;

/* From products to logits: scale, softcap, bias, and -inf where a row may not see a key. */
static INLINE void
finish_scores(const strip *s, real scale, double softcap)
{
    v_real minus_inf = v_set1((real)-INFINITY);
    bool capped = softcap > 0;

    for (ptrdiff_t i = 0; i < s->n_lines; i++) {
        for (int v = 0; v < s->n_vec; v++) {
            ptrdiff_t at = i * s->line + v * LANES;
            v_real x = v_mul(v_load(s->at + at), v_set1(scale));
            __asm__("" : "+r"(capped)); /* or compilers make a loop for either */
            if (capped) {
                v_real cap = v_set1((real)softcap);
                x = v_mul(cap, tanh_of(v_div(x, cap)));
            }
            if (s->bias != NULL) {
                x = v_add(x, v_load(s->bias + i * s->bias_line + v * LANES));
            }
            if (s->bits != NULL) {
                ptrdiff_t bit = s->first_bit + v * LANES;
                uint64_t word = s->bits[i * s->bits_line + bit / 64];
                x = v_select(v_mask_of(word >> (bit % 64)), x, minus_inf);
            }
            v_store(s->at + at, x);
        }
    }
}

#endif
