/* The products of several networks at once, and the sums of their results. */
#include "core/experts.h"

enum { TASK_COLUMNS = 256, ROWS_AHEAD = 4 /* of a network's results */ };

double
attn_experts_work(const attn_experts_problem *e)
{
    double work = 0;

    for (int i = 0; i < e->n; i++) {
        work += attn_linear_work(e->first[i]) + attn_linear_work(e->last[i]);
        work += e->gate == NULL ? 0 : attn_linear_work(e->gate[i]);
    }
    return work;
}

/* Adds n numbers times a factor, and prefetches as many others. */
static void
add_row(float *restrict to, const float *restrict from, float by, ptrdiff_t n,
        const char *next)
{
    enum { PART = 16 };

    for (; n >= PART; n -= PART, to += PART, from += PART) {
        __builtin_prefetch(next);
        next += PART * sizeof *from;
        for (int i = 0; i < PART; i++) {
            to[i] += from[i] * by;
        }
    }
    for (ptrdiff_t i = 0; i < n; i++) {
        to[i] += from[i] * by;
    }
}

/* Some columns of all results. */
static void
add_columns(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const attn_experts_problem *e = context;
    ptrdiff_t n = attn_part_of(e->n_columns, TASK_COLUMNS, index), result = 0;

    (void)worker;
    for (int i = 0; i < e->n; i++) {
        const attn_array *from = &e->last[i]->output;
        for (ptrdiff_t r = 0; r < e->last[i]->n_rows; r++, result++) {
            const char *row = from->data + r * from->row_stride;
            const float *numbers =
                (const float *)(const void *)row + index * TASK_COLUMNS;
            add_row(e->total + e->rows[result] * e->n_columns + index * TASK_COLUMNS,
                    numbers, e->weights[result], n,
                    (const char *)numbers + ROWS_AHEAD * from->row_stride);
        }
    }
}

int
attn_experts(const attn_experts_problem *e, attn_call *call)
{
    attn_tasks sums = {.n = attn_divide_up(e->n_columns, TASK_COLUMNS),
                       .run = add_columns,
                       .context = e};

    for (int i = 0; i < e->n; i++) {
        sums.work += (double)e->last[i]->n_rows * (double)e->n_columns *
                     ATTN_WORK_OF_A_BYTE * sizeof(float);
    }
    return attn_linears(e->n, e->first, e->gate, call) < 0 ||
                   attn_linears(e->n, e->last, NULL, call) < 0
               ? -1
               : attn_run_tasks(&sums, call);
}
