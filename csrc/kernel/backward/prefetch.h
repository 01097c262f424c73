/* Prefetches of the next tile of rows, or chunk of keys, which run beside the products of this
 * one: no CPU sees by itself what comes next there. */
#ifndef ATTN_KERNEL_BACKWARD_PREFETCH_H
#define ATTN_KERNEL_BACKWARD_PREFETCH_H

#include "kernel/attention/keys.h"
#include "kernel/backward/task.h"

/* Adds the rows of an array of queries behind those of the tile: the next tile's, or the next
 * head's. */
static NOINLINE void
add_rows_prefetch(backward_work *w, const attn_array *array, ptrdiff_t n_columns)
{
    if (array->data != NULL) {
        const char *at = query_row(w, array, w->task.n_rows);
        w->prefetches[w->n_prefetches++] =
            prefetch_of(array, at, n_columns, w->task.n_rows);
    }
}

/* Adds the gradients behind those of key `end`: the next chunk's, or the next head's. */
static NOINLINE void
add_key_grads_prefetch(backward_work *w, const attn_array *array, ptrdiff_t n_columns,
                       ptrdiff_t end)
{
    ptrdiff_t n_keys = w->g->attention.n_keys;

    if (array->data != NULL && !is_rounded(array)) {
        const char *at = end < n_keys ? key_grad_row(w, array, end)
                                      : key_grad_row(w, array, 0) + array->head_stride;
        w->prefetches[w->n_prefetches++] =
            prefetch_of(array, at, n_columns, least(n_keys, ATTN_BLOCK));
    }
}

/* Adds the keys, or the values, behind key `end`. */
static NOINLINE void
add_keys_prefetch(backward_work *w, ptrdiff_t end, bool value)
{
    ptrdiff_t n_keys = w->g->attention.n_keys;
    ptrdiff_t n = least(n_keys - end, ATTN_BLOCK - end % ATTN_BLOCK);

    w->prefetches[w->n_prefetches++] =
        end >= n_keys ? next_head_prefetch(&w->rows, value)
        : value       ? run_prefetch(values_of(&w->rows, end, n))
                      : run_prefetch(keys_of(&w->rows, end, n));
}

/* Adds what the block of keys behind key `end` needs, or the first one of the next head. */
static void
add_key_prefetches(backward_work *w, ptrdiff_t end)
{
    const attn_backward_problem *g = w->g;
    const attn_problem *p = &g->attention;

    add_key_grads_prefetch(w, &g->grad_value, p->value_dim, end);
    add_key_grads_prefetch(w, &g->grad_key, p->head_dim, end);
    add_keys_prefetch(w, end, true);
    add_keys_prefetch(w, end, false);
}

/* Adds what the next tile of rows needs. */
static void
add_tile_prefetches(backward_work *w)
{
    const attn_backward_problem *g = w->g;
    const attn_problem *p = &g->attention;

    if (!is_rounded(&g->grad_query)) {
        add_rows_prefetch(w, &g->grad_query, p->head_dim);
    }
    add_rows_prefetch(w, &p->output, p->value_dim);
    add_rows_prefetch(w, &g->grad_output, p->value_dim);
    add_rows_prefetch(w, &p->query, p->head_dim);
}

/* Moves the last prefetches that were added to a product; two only if fewer products follow than
 * prefetches: memory has more time if few lines come at once. */
static NOINLINE void
take_prefetches(backward_work *w, prefetch next[2])
{
    ptrdiff_t n_products = 4 * attn_divide_up(w->g->attention.head_dim, ATTN_DIM_BLOCK);
    ptrdiff_t n_later = most(n_products - 2, 0); /* D may be 0 */

    for (int k = 0; k < 2; k++) {
        next[k] = w->n_prefetches > k * n_later ? w->prefetches[--w->n_prefetches]
                                                : (prefetch){.n_rows = 0};
    }
}

#endif
