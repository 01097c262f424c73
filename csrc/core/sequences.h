/* Where the rows of a batch are, which may be a sequence packed in one array with others. */
#ifndef ATTN_CORE_SEQUENCES_H
#define ATTN_CORE_SEQUENCES_H

#include "core/attention.h"

static inline ptrdiff_t
attn_n_queries(const attn_problem *p, ptrdiff_t b)
{
    return attn_packed_length(attn_query_starts(p->packed), b, p->n_queries);
}

static inline ptrdiff_t
attn_n_keys(const attn_problem *p, ptrdiff_t b)
{
    return attn_packed_length(attn_key_starts(p->packed), b, p->n_keys);
}

/* The first row of query, output and lse; 0 unless queries are packed. */
static inline ptrdiff_t
attn_first_query(const attn_problem *p, ptrdiff_t b)
{
    return attn_packed_start(attn_query_starts(p->packed), b);
}

/* The first row of key and value; 0 unless keys are packed. */
static inline ptrdiff_t
attn_first_key(const attn_problem *p, ptrdiff_t b)
{
    return attn_packed_start(attn_key_starts(p->packed), b);
}

#endif
