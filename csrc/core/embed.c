/* Embeddings: sums of rows of tables. */
#include "core/embed.h"

#include "core/half.h"

#include <assert.h>
#include <string.h>

enum { CHUNK = 256 }; /* numbers that are converted at a time */

/* Converts n numbers of 16 bits. */
static void
widen(const uint16_t *restrict from, attn_dtype dtype, ptrdiff_t n, float *restrict to)
{
    if (dtype == ATTN_F16) {
        for (ptrdiff_t i = 0; i < n; i++) {
            to[i] = attn_from_f16(from[i]);
        }
        return;
    }
    for (ptrdiff_t i = 0; i < n; i++) {
        to[i] = attn_from_bf16(from[i]);
    }
}

static void
add_floats(const float *restrict from, ptrdiff_t n, float *restrict to)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        to[i] += from[i];
    }
}

static void
add_halves(const uint16_t *from, attn_dtype dtype, ptrdiff_t n, float *to)
{
    float widened[CHUNK];

    for (ptrdiff_t i = 0; i < n; i += CHUNK) {
        ptrdiff_t m = n - i < CHUNK ? n - i : CHUNK;
        widen(from + i, dtype, m, widened);
        add_floats(widened, m, to + i);
    }
}

/* The row of a table that goes into a row of the output. */
static const void *
row_of(const attn_table *t, ptrdiff_t row, ptrdiff_t n_columns)
{
    return t->rows + t->numbers[row % t->n_numbers] * n_columns *
                         (ptrdiff_t)attn_storage_of(t->dtype)->bytes;
}

static void
sum_floats(const attn_embed_problem *p, ptrdiff_t row, float *to)
{
    const attn_table *t = p->tables, *end = t + p->n_tables;
    const ptrdiff_t n = p->n_columns;
    const float factor = (float)p->factor;

    if (t->transposed != NULL) {
        attn_dequantize_column(t->transposed, n, t->numbers[row % t->n_numbers], to);
    } else if (t->dtype == ATTN_F32) {
        memcpy(to, row_of(t, row, n), (size_t)n * sizeof *to);
    } else {
        widen(row_of(t, row, n), t->dtype, n, to);
    }
    for (ptrdiff_t i = 0; i < n && factor != 1; i++) {
        to[i] *= factor;
    }
    while (++t < end) {
        if (t->dtype == ATTN_F32) {
            add_floats(row_of(t, row, n), n, to);
        } else {
            add_halves(row_of(t, row, n), t->dtype, n, to);
        }
    }
}

static void
sum_doubles(const attn_embed_problem *p, ptrdiff_t row, double *to)
{
    for (int k = 0; k < p->n_tables; k++) {
        const double *from = row_of(&p->tables[k], row, p->n_columns);
        for (ptrdiff_t i = 0; i < p->n_columns; i++) {
            to[i] = k == 0 ? from[i] * p->factor : to[i] + from[i];
        }
    }
}

static void
run_task(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const attn_embed_problem *p = context;
    ptrdiff_t row = index * ATTN_TASK_ROWS;
    const ptrdiff_t end = row + attn_part_of(p->n_rows, ATTN_TASK_ROWS, index);

    (void)worker;
    for (; row < end; row++) {
        if (p->arithmetic == ATTN_F64) {
            sum_doubles(p, row, (double *)p->output + row * p->n_columns);
        } else {
            sum_floats(p, row, (float *)p->output + row * p->n_columns);
        }
    }
}

double
attn_embed_work(const attn_embed_problem *p)
{
    ptrdiff_t bytes = 0;

    for (int i = 0; i < p->n_tables; i++) {
        bytes += attn_storage_of(p->tables[i].dtype)->bytes;
    }
    return (double)p->n_rows * (double)p->n_columns * (double)bytes *
           ATTN_WORK_OF_A_BYTE;
}

void
attn_embed(const attn_embed_problem *p, attn_call *call)
{
    attn_tasks tasks = {.n = attn_divide_up(p->n_rows, ATTN_TASK_ROWS),
                        .work = attn_embed_work(p),
                        .run = run_task,
                        .context = p};

    assert(p->n_tables >= 1 && p->n_rows >= 0 && p->n_columns >= 0);
    (void)attn_run_tasks(&tasks, call);
}
