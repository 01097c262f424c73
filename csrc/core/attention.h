/* Attention: one call as a problem, the tasks it is split into, and the driver.
 *
 * The rows of a group are its G * Lq (head, query) pairs in that order: row r is query
 * r % Lq of the group's head r / Lq. A batch's arrays begin at its own first query, key and
 * so on, packed ones too. */
#ifndef ATTN_CORE_ATTENTION_H
#define ATTN_CORE_ATTENTION_H

#include "core/array.h"
#include "core/extras.h"
#include "core/limits.h"
#include "core/tasks.h"

/* Of statistics.h */
typedef struct attn_statistics attn_statistics;
typedef struct attn_task_statistics attn_task_statistics;

/* One call. Everything is valid, and broadcast, before it comes here. */
typedef struct {
    attn_batch batch;
    ptrdiff_t n_kv_heads;
    ptrdiff_t group;     /* query heads per key/value head */
    ptrdiff_t n_queries; /* of the longest sequence, where they are packed */
    ptrdiff_t n_keys;
    ptrdiff_t head_dim;
    ptrdiff_t value_dim;
    ptrdiff_t task_rows; /* rows of a task, at most: core/arrangement.h. No bit of a
                          * result depends on it */

    attn_dtype arithmetic;     /* ATTN_F32 or ATTN_F64 */
    attn_array query;          /* (B, H, Lq, D) */
    attn_array key;            /* (B, Hk, Lk, D) */
    attn_array value;          /* (B, Hk, Lk, Dv) */
    attn_array key_scale;      /* (B, Hk, Lk) what a score is multiplied by, if keys are
                                * integers, or none */
    attn_array value_scale;    /* the same of values and their weights */
    attn_array mask;           /* (B, H, Lq, Lk) bytes, nonzero = may attend; or none */
    attn_array bias;           /* (B, H, Lq, Lk), or none */
    attn_array sinks;          /* (H,), or none */
    attn_array q_offset;       /* (B,) int64, or none: then by alignment */
    attn_array kv_lengths;     /* (B,) int64 in [0, Lk], or none: Lk */
    attn_array output;         /* (B, H, Lq, Dv) */
    attn_array lse;            /* (B, H, Lq) in the arithmetic's dtype, or none */
    const attn_packed *packed; /* NULL where no sequences are packed */
    const attn_pages *pages;   /* NULL where keys are not in pages */
    const attn_weights *weights;       /* NULL where they are not wanted */
    const attn_partial *partial;       /* NULL unless other calls have other keys */
    const attn_statistics *statistics; /* NULL except in attn_measure */

    bool
        is_cold; /* keys and values of former calls lie in memory, however few they are */
    bool causal;
    bool top_left;        /* default position of query 0: 0, else kv_length - Lq */
    int64_t window_left;  /* keys before the position that are visible; < 0: all */
    int64_t window_right; /* keys after the position that are visible; < 0: all */
    double scale;
    double softcap; /* 0: none */
    double dropout; /* 0: none; else what part of the weights is dropped, below 1 */
    uint64_t dropout_seed;
} attn_problem;

/* Rows first_row .. first_row + n_rows of one (batch, kv head), with its arrays' addresses
 * there (those of per-head arrays at the group's first head), and the half-open range
 * of keys that the options other than mask and bias let each row see. */
typedef struct {
    const char *query, *key, *value, *key_scale, *value_scale, *mask, *bias, *sinks;
    char *output, *weights, *lse;
    const attn_task_statistics *statistics; /* NULL except in attn_measure */
    int64_t q_offset;                       /* the position of this batch's query 0 */
    int64_t kv_length;                      /* the keys of this batch */
    ptrdiff_t n_queries;                    /* of this batch */
    ptrdiff_t batch, first_head;            /* of the group */
    ptrdiff_t first_row;
    ptrdiff_t n_rows;
    ptrdiff_t see_from[ATTN_TASK_ROWS];
    ptrdiff_t see_to[ATTN_TASK_ROWS]; /* see_from = see_to = 0: nothing */
} attn_task;

/* What a kernel does of attention. */
typedef struct {
    /* Bytes of workspace that one thread needs, and of what run_chunk writes. */
    size_t (*workspace_size)(const attn_problem *);
    size_t (*partial_size)(const attn_problem *);
    /* Computes one task. */
    void (*run)(const attn_problem *, const attn_task *, const attn_worker *);
    /* The same in parts, for tasks too few to keep the threads busy: run_chunk attends to
     * the keys of one chunk; combine takes up its partial results, in ascending order;
     * end_combine writes the results. A workspace serves one task until its end. */
    void (*run_chunk)(const attn_problem *, const attn_task *, ptrdiff_t first_key,
                      void *partial, const attn_worker *);
    void (*begin_combine)(const attn_problem *, const attn_task *, const attn_worker *);
    void (*combine)(void *partial, const attn_worker *);
    void (*end_combine)(const attn_worker *);
} attn_attention_kernel;

/* Sets up a task, whose n_queries, first_row and n_rows are set, of (b, kv_head). */
void attn_set_up_task(const attn_problem *, ptrdiff_t b, ptrdiff_t kv_head,
                      attn_task *);

/* Multiplications, roughly: says how many threads are worth waking. */
double attn_attention_work(const attn_problem *);

/* The driver. -1 when memory runs out, else 0. */
int attn_attention(const attn_problem *, attn_call *);

#endif
