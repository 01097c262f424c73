/* Row form: the products of a group of keys, by vectors: scores S[row][key], and weighted sums
 * of values, O[row][d]. */
#ifndef ATTN_KERNEL_ATTENTION_ROW_PRODUCTS_H
#define ATTN_KERNEL_ATTENTION_ROW_PRODUCTS_H

#include "kernel/attention/hidden.h"
#include "kernel/attention/row_scores.h"
#include "kernel/attention/row_values.h"
#include "kernel/product_few.h"

/* Products of queries with the block's keys from k on, KEY_GROUP or as many as there are. */
static void
score_group(work *w, const block *b, ptrdiff_t k)
{
    const attn_array *key = &w->p->key;
    ptrdiff_t first = b->first + k, n = least(b->end - first, KEY_GROUP);
    storage kind = key_storage(key->dtype);
    key_lanes keys = {.at = key_at(w, first),
                      .row = key->row_stride,
                      .next = look_ahead(w, b, k / KEY_GROUP)};

    if (n % LANES == 0 && reads_in_place(key, w->p->head_dim, kind)) {
        keys.touch = next_in_stream(w, b, first);
    } else {
        keys.at = gather_keys(w, first, n);
        keys.row = w->key_width * (ptrdiff_t)sizeof(operand);
        kind = AS_OPERANDS;
    }
    for (ptrdiff_t lane = 0, taken; lane < n; lane += taken) {
        int n_vec = vectors_at_once(w, n - lane);
        score_keys_of_rows(w, &keys, n_vec, w->scores + k + lane, kind);
        taken = n_vec * LANES;
        keys.at += taken * keys.row;
        keys.touch += keys.touch == NULL ? 0 : taken * keys.row;
        keys.next.n_rows = 0;
    }
}

/* Adds the weighted values of n keys from key k of the block on to its sums. */
static void
add_weighted_values(work *w, const block *b, ptrdiff_t k, ptrdiff_t n)
{
    const attn_array *value = &w->p->value;
    ptrdiff_t value_dim = w->p->value_dim, width = w->value_width;
    ptrdiff_t n_steps = (n + TERMS - 1) / TERMS;
    storage kind = value_storage(value->dtype);
    product m = {.c = w->row_sums,
                 .c_row = width,
                 .a = {(const operand *)w->scores + k / TERMS, ATTN_BLOCK},
                 .b = value_at(w, b->first + k),
                 .b_row = value->row_stride,
                 .n_rows = row_form_rows(w->task->n_rows),
                 .n_steps = n_steps,
                 .resume = true,
                 .b_ahead = values_ahead(w, b, b->first + k),
                 .b_far = !w->reads_once};
    matrix values = {NULL, 0};

    if (b->coverage != ATTN_SEE_ALL || width != value_dim || n % TERMS != 0 ||
        !reads_in_place(value, value_dim, kind)) {
        values = fetch_values(w, b->first + k, n, 0, value_dim, width);
        m.b = (const char *)values.at;
        m.b_row = values.row * (ptrdiff_t)sizeof(operand);
        m.b_ahead = 0;
        kind = AS_OPERANDS;
    }
    if (b->coverage == ATTN_SEE_ALL || all_finite(values, n_steps, value_dim)) {
        multiply_few(m, width / LANES, kind);
        return;
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        for (ptrdiff_t d = 0; d < value_dim; d++) {
            real *sum = m.c + r * width + d;
            *sum = sum_seen_values(w, r, k, n_steps, m.a.at + r * ATTN_BLOCK, 1, values,
                                   d, *sum);
        }
    }
}

/* Sums of the block's weights, and of its weighted values, group by group: the first are chains of
 * their own that run beside the products. */
static void
sum_rows(work *w, const block *b, real *sums)
{
    ptrdiff_t n_keys = b->end - b->first;

    memset(w->row_sums, 0,
           (size_t)(row_form_rows(w->task->n_rows) * w->value_width) * sizeof(real));
    for (ptrdiff_t k = 0; k < n_keys; k += KEY_GROUP) {
        begin_group(w, b, k, sums);
        add_weighted_values(w, b, k, least(n_keys - k, KEY_GROUP));
    }
}

#endif
