/* What the next tile of rows, or chunk of keys, will need, asked for while products of this one
 * run: no CPU sees by itself what comes next there. */
#ifndef ATTN_KERNEL_BACKWARD_AHEAD_H
#define ATTN_KERNEL_BACKWARD_AHEAD_H

#include "kernel/attention/keys.h"
#include "kernel/backward/task.h"

/* Rows of an array of queries behind those of the tile: its next ones, or the next head's. */
static NOINLINE void
ask_for_rows(backward_work *w, const attn_array *array, ptrdiff_t n_columns)
{
    if (array->data != NULL) {
        const char *at = query_row(w, array, w->task.n_rows);
        w->ahead[w->n_ahead++] = prefetch_of(array, at, n_columns, w->task.n_rows);
    }
}

/* The gradients behind those of key `end`: the next chunk's, or the next head's. */
static NOINLINE void
ask_for_key_grads(backward_work *w, const attn_array *array, ptrdiff_t n_columns,
                  ptrdiff_t end)
{
    ptrdiff_t n_keys = w->g->attention.n_keys;

    if (array->data != NULL) {
        const char *at = end < n_keys ? key_grad_row(w, array, end)
                                      : key_grad_row(w, array, 0) + array->head_stride;
        w->ahead[w->n_ahead++] =
            prefetch_of(array, at, n_columns, least(n_keys, ATTN_BLOCK));
    }
}

/* The keys, or values, behind key `end`, likewise. */
static NOINLINE void
ask_for_keys(backward_work *w, ptrdiff_t end, bool value)
{
    ptrdiff_t n_keys = w->g->attention.n_keys;
    ptrdiff_t n = least(n_keys - end, ATTN_BLOCK - end % ATTN_BLOCK);

    w->ahead[w->n_ahead++] = end >= n_keys ? next_head_prefetch(&w->rows, value)
                             : value       ? run_prefetch(values_of(&w->rows, end, n))
                                           : run_prefetch(keys_of(&w->rows, end, n));
}

/* What the chunk of keys behind key `end` will need, or those of the next head. */
static void
ask_for_chunk(backward_work *w, ptrdiff_t end)
{
    const attn_backward_problem *g = w->g;
    const attn_problem *p = &g->attention;

    ask_for_key_grads(w, &g->grad_value, p->value_dim, end);
    ask_for_key_grads(w, &g->grad_key, p->head_dim, end);
    ask_for_keys(w, end, true);
    ask_for_keys(w, end, false);
}

/* What the tile of rows behind this one will need. */
static void
ask_for_tile(backward_work *w)
{
    const attn_backward_problem *g = w->g;
    const attn_problem *p = &g->attention;

    ask_for_rows(w, &g->grad_query, p->head_dim);
    ask_for_rows(w, &p->output, p->value_dim);
    ask_for_rows(w, &g->grad_output, p->value_dim);
    ask_for_rows(w, &p->query, p->head_dim);
}

/* One of what is asked for, or nothing. */
static NOINLINE prefetch
next_ahead(backward_work *w)
{
    return w->n_ahead > 0 ? w->ahead[--w->n_ahead] : (prefetch){.n_rows = 0};
}

#endif
