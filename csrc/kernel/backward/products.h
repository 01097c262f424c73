/* The products of attention backwards, all of the one micro-kernel. Two of them are of keys by
 * rows in the lanes, as forward: the scores, and the gradients of weights. */
#ifndef ATTN_KERNEL_BACKWARD_PRODUCTS_H
#define ATTN_KERNEL_BACKWARD_PRODUCTS_H

#include "kernel/backward/ahead.h"
#include "kernel/matrix.h"
#include "kernel/product_tiles.h"

/* As multiply, or multiply_transposed, for any number of vectors. */
static void
multiply_vectors(product m, ptrdiff_t n_vec, bool a_transposed)
{
    for (; n_vec > 0; n_vec -= TILE_VECTORS) {
        int n = (int)least(n_vec, TILE_VECTORS);
        if (a_transposed) {
            multiply_transposed(m, n);
        } else {
            multiply(m, n);
        }
        m.c += WIDTH;
        m.b += WIDTH * sizeof(operand);
    }
}

/* to[key][lane] = rows of keys, of n_columns, times columns of lanes, for the span's keys. */
static void
multiply_by_lanes(backward_work *w, const attn_array *keys, ptrdiff_t n_columns,
                  const real *lanes, const span *s, real *to)
{
    ptrdiff_t d = 0;

    do { /* there may be no column */
        ptrdiff_t n = least(n_columns - d, ATTN_DIM_BLOCK);
        const char *from = key_row(w, keys, s->first) + d * keys->column_stride;
        matrix a = fetch_rows(keys, from, s->n, n_columns, n, n, w->rows.slab);
        for (int t = 0; t < w->rows.n_tiles; t++) {
            multiply((product){.c = to + t * WIDTH,
                               .c_row = LINE,
                               .a = a,
                               .b = (const char *)(lanes + (t * n_columns + d) * WIDTH),
                               .b_row = WIDTH * sizeof(real),
                               .n_rows = s->n,
                               .n_steps = n,
                               .add = d > 0,
                               .next = {next_ahead(w), next_ahead(w)}},
                     tile_vectors(&w->rows, t));
        }
        d += ATTN_DIM_BLOCK;
    } while (d < n_columns);
}

#endif
