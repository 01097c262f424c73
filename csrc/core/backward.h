/* Attention backwards: from the gradient of its output to those of its inputs.
 *
 * Rows are taken in tiles: up to 64 queries of a head from a multiple of 64 on, or all of
 * several heads. A sum over queries has a chain from 0 for each head of a tile, a sum over keys
 * one for each block of ATTN_BLOCK. The chains are added up in the order of batches, heads,
 * queries and keys, whichever thread does it. */
#ifndef ATTN_CORE_BACKWARD_H
#define ATTN_CORE_BACKWARD_H

#include "core/attention.h"

/* Gradients are in the arithmetic's dtype, or of 16 bits where attn_backward_rounds, with adjacent
 * columns. They have stride 0 along the axes that the input broadcasts along; data is NULL
 * where one is not wanted. */
typedef struct {
    attn_problem attention; /* output and lse are there; weights are not */
    attn_array grad_output; /* (B, H, Lq, Dv) */
    attn_array grad_lse;    /* (B, H, Lq) in the arithmetic's dtype, or none */
    attn_array grad_query;  /* (B, H, Lq, D) */
    attn_array grad_key;    /* (B, Hk, Lk, D) */
    attn_array grad_value;  /* (B, Hk, Lk, Dv) */
    attn_array grad_bias;   /* (B, H, Lq, Lk) zeroed */
    attn_array grad_sinks;  /* (H,) */
    attn_array delta;       /* (B, H, Lq) scratch for the gradients of sinks */
} attn_backward_problem;

/* A part of the work: batches, key/value heads, tiles of their rows and keys, and which gradients
 * it adds to. An end may be beyond the last tile or key. */
typedef struct {
    ptrdiff_t first_batch, end_batch;
    ptrdiff_t first_kv_head, end_kv_head;
    ptrdiff_t first_tile, end_tile;
    ptrdiff_t first_key, end_key; /* multiples of ATTN_BLOCK, or beyond all keys */
    bool query, key, value, bias;
} attn_backward_task;

/* What a kernel does of it. */
typedef struct {
    /* How long the tasks of a divided unit take, in tenths of the time of the whole one. */
    int divided_work;
    size_t (*workspace_size)(const attn_backward_problem *);
    /* delta, of every row of one (batch, kv head) */
    void (*run_delta)(const attn_backward_problem *, ptrdiff_t b, ptrdiff_t kv_head,
                      const attn_worker *);
    void (*run)(const attn_backward_problem *, const attn_backward_task *,
                const attn_worker *);
    /* The gradient of one head's sink. */
    void (*run_sink)(const attn_backward_problem *, ptrdiff_t head,
                     const attn_worker *);
} attn_backward_kernel;

/* How many tiles the rows of a group make, and the rows of one as a task. */
ptrdiff_t attn_backward_tiles(const attn_problem *, ptrdiff_t n_queries);
void attn_set_up_tile(const attn_problem *, ptrdiff_t b, ptrdiff_t kv_head,
                      ptrdiff_t tile, attn_task *);

/* May the gradient of query, or those of key and value, be of 16 bits? A task then keeps the sums
 * in its workspace until it rounds them, so they must fit there. */
bool attn_backward_rounds(const attn_problem *, bool query);

/* Multiplications, roughly. */
double attn_backward_work(const attn_problem *);

/* The driver, which sets delta. -1 when memory runs out, else 0. */
int attn_backward(const attn_backward_problem *, attn_call *);

#endif
