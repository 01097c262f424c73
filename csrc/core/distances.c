/* The driver of scores by distance. It moves numbers, and adds two for each: a plain loop
 * is as fast as memory. */
#include "core/distances.h"

#include <assert.h>

/* Queries of a task: few enough for the lines of of_keys that it reads to stay in the
 * first-level cache, and as many as numbers of a line that they share. */
enum { TASK_ROWS = 16 };

static void
row_of_float(const attn_distances_problem *p, const char *query, const char *key,
             const int64_t *column, float *output)
{
    for (ptrdiff_t j = 0; j < p->n; j++) {
        ptrdiff_t c = (ptrdiff_t)column[-j];

        output[j] = *(const float *)(query + c * p->of_queries.column_stride) +
                    *(const float *)(key + c * p->of_keys.column_stride);
        key += p->of_keys.row_stride;
    }
}

static void
row_of_double(const attn_distances_problem *p, const char *query, const char *key,
              const int64_t *column, double *output)
{
    for (ptrdiff_t j = 0; j < p->n; j++) {
        ptrdiff_t c = (ptrdiff_t)column[-j];

        output[j] = *(const double *)(query + c * p->of_queries.column_stride) +
                    *(const double *)(key + c * p->of_keys.column_stride);
        key += p->of_keys.row_stride;
    }
}

static void
run_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const attn_distances_problem *p = context;
    ptrdiff_t per_head = attn_divide_up(p->n, TASK_ROWS);
    ptrdiff_t h = index / per_head, part = index % per_head;
    const char *key = p->of_keys.data + h * p->of_keys.head_stride;
    const char *query = p->of_queries.data + h * p->of_queries.head_stride;

    (void)worker;
    for (ptrdiff_t r = 0; r < attn_part_of(p->n, TASK_ROWS, part); r++) {
        ptrdiff_t i = part * TASK_ROWS + r, to = (h * p->n + i) * p->n;
        const char *row = query + i * p->of_queries.row_stride;
        const int64_t *column = p->columns + i + p->n - 1;

        if (p->dtype == ATTN_F64) {
            row_of_double(p, row, key, column, (double *)p->output + to);
        } else {
            row_of_float(p, row, key, column, (float *)p->output + to);
        }
    }
}

/* Multiplications that take as long as two loads and an addition, one after another. */
enum { WORK_OF_A_SCORE = 50 };

double
attn_distances_work(const attn_distances_problem *p)
{
    return (double)p->n_heads * (double)p->n * (double)p->n * (double)WORK_OF_A_SCORE;
}

void
attn_distances(const attn_distances_problem *p, attn_call *call)
{
    attn_tasks tasks = {.n = p->n_heads * attn_divide_up(p->n, TASK_ROWS),
                        .work = attn_distances_work(p),
                        .in_runs = true,
                        .run = run_task,
                        .context = p};

    assert(p->dtype == ATTN_F32 || p->dtype == ATTN_F64);
    (void)attn_run_tasks(&tasks, call);
}
