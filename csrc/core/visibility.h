/* Which keys a row may see. */
#ifndef ATTN_CORE_VISIBILITY_H
#define ATTN_CORE_VISIBILITY_H

#include "core/attention.h"

/* Which of a block's keys the rows of a task may see: bit k of keys[row] is key k of the
 * block. */
typedef uint64_t attn_key_bits[ATTN_TASK_ROWS][ATTN_BLOCK_WORDS];
typedef enum { ATTN_SEE_NONE, ATTN_SEE_SOME, ATTN_SEE_ALL } attn_coverage;

/* Sets the task's see_from and see_to from the position of its batch's query 0 and the
 * number of keys there. Positions are exact for every int64_t. */
void attn_see_ranges(const attn_problem *, int64_t q_offset, int64_t kv_length,
                     attn_task *);

/* The reverse: the queries of a head, of the batch whose q_offset, kv_length and
 * n_queries the task has, that these options let see some key of first_key .. end_key -
 * 1: *from up to but not *to; 0 and 0 where there are none. */
void attn_seeing_queries(const attn_problem *, const attn_task *, ptrdiff_t first_key,
                         ptrdiff_t end_key, ptrdiff_t *from, ptrdiff_t *to);

/* The keys that some row of a task may see: *from up to but not *to; *from >= *to where
 * there are none. */
void attn_seen_keys(const attn_task *, ptrdiff_t *from, ptrdiff_t *to);

/* Finds which keys of a block each row of the task may see. `keys` is written, all of it,
 * unless the answer is ATTN_SEE_ALL. */
attn_coverage attn_see_block(const attn_problem *, const attn_task *,
                             ptrdiff_t first_key, ptrdiff_t n_keys, attn_key_bits keys);

/* rows[k], for the n_keys keys of a block: bit r tells whether row r may see key k. */
void attn_transpose_bits(const attn_key_bits keys, ptrdiff_t n_keys,
                         uint64_t rows[ATTN_BLOCK]);

#endif
