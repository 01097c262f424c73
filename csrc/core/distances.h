/* Scores of queries and keys by their distance, of products with embeddings of distances. */
#ifndef ATTN_CORE_DISTANCES_H
#define ATTN_CORE_DISTANCES_H

#include "core/array.h"
#include "core/tasks.h"

/* output[h][i][j] = of_queries[h][i][c] + of_keys[h][j][c] with c = columns[i - j + n - 1].
 * All of them are float, or all double. */
typedef struct {
    ptrdiff_t n_heads, n;
    attn_dtype dtype;
    attn_array of_queries, of_keys; /* (H, n, m) */
    const int64_t *columns;         /* (2 n - 1,), each below m */
    char *output;                   /* (H, n, n), contiguous */
} attn_distances_problem;

double attn_distances_work(const attn_distances_problem *);

/* Cannot fail: it needs no memory. */
void attn_distances(const attn_distances_problem *, attn_call *);

#endif
