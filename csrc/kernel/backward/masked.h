/* Sums with masked terms that are not finite: 0 * NaN must not reach a gradient. */
#ifndef ATTN_KERNEL_BACKWARD_MASKED_H
#define ATTN_KERNEL_BACKWARD_MASKED_H

#include "kernel/backward/task.h"
#include "kernel/gemm/product.h"

/* One of the products that add to gradients: to += the sum over the terms of
 * factor[.][.] times their rows of an array. */
typedef struct {
    const operand *
        factors; /* (keys, FACTOR_LINE), or (keys / TERMS, LINE), from a key and a row on */
    bool by_key;                 /* a term is a key, else one of the tile's rows */
    const attn_array *array;     /* whose rows the terms are */
    const char *from;            /* the first of them */
    real *to;                    /* gradients, from the first key, or row, on */
    ptrdiff_t to_row;            /* reals from one of them to the next */
    ptrdiff_t n_columns;         /* of these rows and gradients */
    ptrdiff_t first_row, n_rows; /* of the tile */
    const span *keys;
    ptrdiff_t first_key; /* of the span, in its block */
} gradient_sum;

/* Does the product add something for this key and this row of the tile? */
static bool
is_term_seen(const backward_work *w, const gradient_sum *s, ptrdiff_t key,
             ptrdiff_t row)
{
    ptrdiff_t k = s->first_key + key;
    return w->rows.see[s->first_row + row][k / 64] >> (k % 64) & 1;
}

/* Bit k: does the product add term k of operand `step` to row i of the result? */
static uint64_t
seen_terms(const backward_work *w, const gradient_sum *s, ptrdiff_t step, ptrdiff_t i)
{
    ptrdiff_t n_terms = s->by_key ? s->keys->n : s->n_rows;
    uint64_t seen = 0;

    for (ptrdiff_t k = 0; k < TERMS && step * TERMS + k < n_terms; k++) {
        ptrdiff_t term = step * TERMS + k;
        bool one =
            s->by_key ? is_term_seen(w, s, term, i) : is_term_seen(w, s, i, term);
        seen |= (uint64_t)one << k;
    }
    return seen;
}

/* The product without its masked terms. */
static NOINLINE void
add_seen_terms(const backward_work *w, const gradient_sum *s, const product *m,
               ptrdiff_t n_columns)
{
    for (ptrdiff_t i = 0; i < m->n_rows; i++) {
        for (ptrdiff_t d = 0; d < n_columns; d++) {
            v_real sum = v_set1(0);
            real lanes[LANES];
            for (ptrdiff_t t = 0; t < m->n_steps; t++) {
                const operand *b = (const operand *)(const void *)(m->b + t * m->b_row);
                uint64_t seen = seen_terms(w, s, t, i);
                if (seen != 0) {
                    operand a =
                        s->factors[s->by_key ? t * LINE + i : i * FACTOR_LINE + t];
                    sum = v_dot(v_set1_operand(a),
                                v_set1_operand(keep_terms(b[d], seen)), sum);
                }
            }
            v_store(lanes, v_add(v_set1(m->c[i * m->c_row + d]), sum));
            m->c[i * m->c_row + d] = lanes[0];
        }
    }
}

#endif
