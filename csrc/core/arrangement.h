/* How a call of attention is split: rows into tasks, and tasks among threads. */
#ifndef ATTN_CORE_ARRANGEMENT_H
#define ATTN_CORE_ARRANGEMENT_H

#include "core/attention.h"

/* Sets task_rows, once all else is set. Tasks have fewer rows where there would be too few for the
 * threads, and where heads are so large that the workspace, some 250 KB and D + 2 Dv reals for
 * each row, would exceed 1 MiB: from D + 2 Dv = 5200 floats on. */
void attn_choose_task_rows(attn_problem *, int n_threads);

/* Tasks that a call is split into, before keys are. */
ptrdiff_t attn_attention_tasks(const attn_problem *);

/* How a call is run. */
typedef struct {
    ptrdiff_t n_tasks;
    double work; /* attn_attention_work */
    int n_threads;
    bool shares_keys; /* each task's keys are split into chunks for all threads */
} attn_arrangement;

attn_arrangement attn_arrange(const attn_problem *, const attn_call *);

/* Sets up one of these tasks; false where it has no rows. */
bool attn_nth_task(const attn_problem *, ptrdiff_t index, attn_task *);

/* Does a group with so few rows, those of all its heads, take row form? With keys that are codes
 * tile form takes any number of rows. */
static inline bool
attn_takes_row_form(const attn_problem *p, ptrdiff_t group_rows)
{
    return group_rows <= ATTN_FEW_ROWS && p->statistics == NULL &&
           p->key.dtype != ATTN_I16;
}

#endif
