/* Embeddings: sums of rows of tables. */
#ifndef ATTN_CORE_EMBED_H
#define ATTN_CORE_EMBED_H

#include "core/quantized.h"
#include "core/tasks.h"

enum { ATTN_MAX_TABLES = 3 }; /* of tokens, segments and positions */

/* A table of V rows, and the numbers of those that are wanted. */
typedef struct {
    const char *rows; /* (V, columns), contiguous; NULL for a quantised one */
    attn_dtype dtype; /* of the problem's arithmetic */
    const attn_quantized
        *transposed;        /* (columns, V), or NULL; only of the first table */
    const int64_t *numbers; /* 0 to V - 1 */
    ptrdiff_t n_numbers;    /* at least 1; they repeat for the rows of the output */
} attn_table;

/* A row of the output is `factor` times one of the first table's, then the others' are added in
 * turn. */
typedef struct {
    ptrdiff_t n_rows;
    ptrdiff_t n_columns;
    int n_tables;
    attn_table tables[ATTN_MAX_TABLES];
    attn_dtype arithmetic; /* ATTN_F32 or ATTN_F64 */
    double factor;
    void *output; /* (rows, columns), contiguous, in the arithmetic's dtype */
} attn_embed_problem;

double attn_embed_work(const attn_embed_problem *); /* multiplications, roughly */

/* Cannot fail: it needs no memory. */
void attn_embed(const attn_embed_problem *, attn_call *);

#endif
