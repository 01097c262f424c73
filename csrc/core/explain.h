/* How a call of attention is run, and which scores it computes, without computing them: for
 * attnpy.explain and for tests. */
#ifndef ATTN_CORE_EXPLAIN_H
#define ATTN_CORE_EXPLAIN_H

#include "core/arrangement.h"

typedef struct {
    attn_arrangement arrangement;
    bool bf16_products;     /* by the CPU's own units */
    int64_t row_tasks;      /* tasks in row form */
    int64_t tile_tasks;     /* tasks in tile form */
    int64_t blocks;         /* of ATTN_BLOCK keys, of all tasks */
    int64_t blocks_skipped; /* that no row of their task sees */
    int64_t blocks_masked;  /* that some row of their task sees in part */
    int64_t scores;         /* computed: rows times keys of the blocks not skipped */
    int64_t visible;        /* of these, those that the row sees */
    int64_t keys_read, rows_read; /* over all (batch, head): keys once for a task */
    size_t workspace;             /* bytes of scratch memory of one thread */
} attn_explanation;

/* The bias's -inf hide keys from a row, but are not looked at here. */
void attn_explain(const attn_problem *, const attn_call *, attn_explanation *);

#endif
