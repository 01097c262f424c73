/* What both forms have for keys and values of int8, whose products are the tier's kernel's:
 * core/bytes.h. A row with a number that is not finite has no codes ("uncoded"): it is multiplied
 * here, number by number. */
#ifndef ATTN_KERNEL_ATTENTION_BYTES_H
#define ATTN_KERNEL_ATTENTION_BYTES_H

#include "kernel/attention/block.h"
#include "kernel/attention/keys.h"

#if REAL_BITS == 32 && TERMS == 1

/* A run as rows of bytes: where they lie, if their columns are adjacent, or in the slab. */
static attn_byte_rows
bytes_of(work *w, const key_run *run, const char *next)
{
    const attn_array *array = run->array;
    int8_t *to = (int8_t *)w->rows.slab;

    if (array->column_stride == 1 || run->dim <= 1 || are_shorts(array)) {
        return (attn_byte_rows){.at = (const int8_t *)run->at,
                                .are_shorts = are_shorts(array),
                                .row = array->row_stride,
                                .n = run->n,
                                .dim = run->dim,
                                .next = (const int8_t *)next};
    }
    for (ptrdiff_t j = 0; j < run->n; j++) {
        const char *from = run->at + j * array->row_stride;
        for (ptrdiff_t d = 0; d < run->dim; d++, from += array->column_stride) {
            ONE_BY_ONE;
            *to++ = *(const int8_t *)from;
        }
    }
    return (attn_byte_rows){.at = (const int8_t *)w->rows.slab,
                            .row = run->dim,
                            .n = run->n,
                            .dim = run->dim};
}

/* Where the block's values begin, which are read after its keys; NULL if they are not to be
 * prefetched. */
static const char *
bytes_after_keys(const work *w, const block *b)
{
    return w->reads_ahead ? values_of(&w->rows, b->first, 1).at : NULL;
}

/* Where the keys of the next block begin; NULL if they are not prefetched. */
static const char *
bytes_after_values(const work *w, const block *b)
{
    return w->reads_ahead && b->end < w->rows.to ? keys_of(&w->rows, b->end, 1).at
                                                 : NULL;
}

/* The scores of row r, which has no codes, with a run of keys, `step` reals apart. */
static NOINLINE void
score_uncoded_row(const work *w, ptrdiff_t r, const key_run *run, const real *scales,
                  real *to, ptrdiff_t step)
{
    const attn_array *query = &w->rows.p->query;
    const char *row = w->rows.task->query + row_offset(&w->rows, query, r);
    real scale = (real)w->rows.p->scale;

    for (ptrdiff_t k = 0; k < run->n; k++) {
        const char *key = run->at + k * run->array->row_stride;
        real sum = 0;
        for (ptrdiff_t d = 0; d < run->dim; d++) {
            ONE_BY_ONE;
            real q = load_element(row + d * query->column_stride, query->dtype);
            sum += q * scale * *(const int8_t *)(key + d * run->array->column_stride);
        }
        to[k * step] = sum * scales[k];
    }
}

/* The sum of column d of a run of values times weights without codes, `step` reals apart. */
static real
sum_uncoded_values(const key_run *run, ptrdiff_t d, const real *weights, ptrdiff_t step)
{
    const char *at = run->at + d * run->array->column_stride;
    real sum = 0;

    for (ptrdiff_t k = 0; k < run->n; k++, at += run->array->row_stride) {
        ONE_BY_ONE;
        sum += weights[k * step] * *(const int8_t *)at;
    }
    return sum;
}

#endif

#endif
