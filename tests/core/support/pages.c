/* Keys and values in pages: each element is copied to where it lies then. */
#include "support/pages.h"

#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Shuffles the pages of all batches. */
static void
deal_pages(ptrdiff_t n, uint64_t *state, int64_t *table)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        ptrdiff_t j = random_below(state, i + 1);
        table[i] = table[j];
        table[j] = i;
    }
}

/* Copies an array of keys into one that has all pages. */
static void
copy_keys(const attn_problem *p, const attn_array *from, ptrdiff_t n_columns,
          const paged *to, problem *pool)
{
    attn_problem *all = &pool->p;
    size_t size = (size_t)attn_storage_of(from->dtype)->bytes;

    for (ptrdiff_t h = 0; h < p->n_kv_heads; h++) {
        for (ptrdiff_t row = 0; row < all->n_queries; row++) {
            for (ptrdiff_t d = 0; d < n_columns; d++) {
                write_number(element(all, &all->output, 0, h, row, d), from->dtype,
                             (double)NAN);
            }
        }
        for (ptrdiff_t k = 0; k < p->batch.n * p->n_keys; k++) {
            ptrdiff_t b = k / p->n_keys, j = k % p->n_keys;
            ptrdiff_t row =
                attn_page_at(&to->pages, b, j) * ATTN_BLOCK + j % ATTN_BLOCK;
            for (ptrdiff_t d = 0; d < n_columns; d++) {
                memcpy(element(all, &all->output, 0, h, row, d),
                       element(p, from, b, h, j, d), size);
            }
        }
    }
}

/* Makes an array of keys one of pages, which lie as it lay. */
static void
page_array(const attn_problem *p, attn_array *array, ptrdiff_t n_columns, layout how,
           const paged *to, problem *pool)
{
    static const attn_batch one = {.n = 1, .n_axes = 2, .shape = {1, 1}};
    ptrdiff_t n_rows = p->batch.n * to->pages.n * ATTN_BLOCK;

    make_result(pool, how, array->dtype, &one, p->n_kv_heads, n_rows, n_columns);
    copy_keys(p, array, n_columns, to, pool);
    *array = pool->p.output;
}

/* The arrays of a problem's keys. */
static void
list_arrays(attn_problem *p, attn_array *arrays[4])
{
    arrays[0] = &p->key;
    arrays[1] = &p->value;
    arrays[2] = &p->key_scale;
    arrays[3] = &p->value_scale;
}

void
put_in_pages(attn_problem *p, uint64_t *state, paged *to)
{
    static const layout layouts[] = {DENSE, DENSE, HEADS_INSIDE, SPREAD, REVERSED};
    const ptrdiff_t n_columns[] = {p->head_dim, p->value_dim, 1, 1};
    attn_array *arrays[4];

    list_arrays(p, arrays);
    to->pages.n = (p->n_keys + ATTN_BLOCK - 1) / ATTN_BLOCK;
    ptrdiff_t n = p->batch.n * to->pages.n;
    to->table = malloc((size_t)(n + 1) * sizeof *to->table);
    if (to->table == NULL) {
        abort();
    }
    to->pages.table = to->table;
    deal_pages(n, state, to->table);
    for (int i = 0; i < 4; i++) {
        to->inputs[i] = *arrays[i];
        if (arrays[i]->data != NULL) {
            page_array(p, arrays[i], n_columns[i], layouts[random_below(state, 5)], to,
                       &to->pools[i]);
        }
    }
    to->pages.key_stride = ATTN_BLOCK * p->key.row_stride;
    to->pages.value_stride = ATTN_BLOCK * p->value.row_stride;
    to->pages.key_scale_stride = ATTN_BLOCK * p->key_scale.row_stride;
    to->pages.value_scale_stride = ATTN_BLOCK * p->value_scale.row_stride;
    p->pages = &to->pages;
}

void
put_back(attn_problem *p, paged *from)
{
    attn_array *arrays[4];

    list_arrays(p, arrays);
    for (int i = 0; i < 4; i++) {
        if (arrays[i]->data != NULL) {
            free_problem(&from->pools[i]);
        }
        *arrays[i] = from->inputs[i];
    }
    p->pages = NULL;
    free(from->table);
}
