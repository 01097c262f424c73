/* The rows of a task, which the forward and the backward pass share: their queries,
 * where arrays have them, and which keys of a block they may see. */
#ifndef ATTN_KERNEL_ATTENTION_ROWS_H
#define ATTN_KERNEL_ATTENTION_ROWS_H

#include "core/bytes.h"
#include "core/visibility.h"
#include "kernel/operands/lanes.h"
#include "kernel/operands/prefetch.h"

typedef struct {
    const attn_problem *p;
    const attn_task *task;
    bool row_form;
    int n_tiles;
    ptrdiff_t from, to;  /* keys that some row may see */
    ptrdiff_t key_width; /* operands of a row of query or key */
    /* (tiles, key_width, WIDTH); row form: (rows, key_width). Where keys are bytes, codes in
     * the first half of (rows, key_width). */
    operand *query;
    real *pairs; /* tile form: (tiles, key_width / 2, WIDTH) pairs of these codes */
    const attn_byte_kernel *bytes; /* the tier's */
    const attn_byte_unit *byte_unit;
    real factor[ATTN_TASK_ROWS]; /* what their products with bytes are multiplied by */
    uint64_t uncoded_rows;       /* a bit for each row that has no codes */
    real *staging; /* (LANES, SLAB_COLUMNS) rows that are not contiguous reals */
    operand *slab; /* keys or values brought into contiguous operands */
    real *bias;    /* (rows, BLOCK), unless it is read where it lies */
    const char *bias_rows[ATTN_TASK_ROWS]; /* of the array, from key 0 on */
    attn_key_bits see, keep;               /* of a block; keep: what dropout leaves */
    uint64_t see_lanes[ATTN_BLOCK],
        keep_lanes[ATTN_BLOCK]; /* transposed: bit r of [k] */
} task_rows;

/* Offset of row r of the task in an array that has a row for each head and query. */
static ptrdiff_t
row_offset(const task_rows *t, const attn_array *array, ptrdiff_t r)
{
    ptrdiff_t row = t->task->first_row + r;
    ptrdiff_t n_queries = t->task->n_queries;
    return row / n_queries * array->head_stride + row % n_queries * array->row_stride;
}

static ptrdiff_t
tile_rows(const task_rows *t, int tile)
{
    return least(t->task->n_rows - (ptrdiff_t)tile * WIDTH, WIDTH);
}

/* Vectors of a tile that hold rows; what lies beyond is never read. */
static int
tile_vectors(const task_rows *t, int tile)
{
    return (int)((tile_rows(t, tile) + LANES - 1) / LANES);
}

/* The addresses of an array's rows from row r of the task on, one for each lane that has a row;
 * returns how many. */
static ptrdiff_t
row_addresses(const task_rows *t, const attn_array *array, const char *base,
              ptrdiff_t r, const char *rows[LANES])
{
    ptrdiff_t n = least(t->task->n_rows - r, LANES), n_queries = t->task->n_queries;
    ptrdiff_t query = (t->task->first_row + r) % n_queries;
    const char *at = base + row_offset(t, array, r);

    for (ptrdiff_t i = 0; i < n; i++, at += array->row_stride) {
        ONE_BY_ONE;
        rows[i] = at;
        if (++query == n_queries) { /* a division takes long */
            query = 0;
            at += array->head_stride - n_queries * array->row_stride;
        }
    }
    return n;
}

/* Stores n_columns of a column of vectors into the rows from r on of a result. */
static void
store_result(task_rows *t, const attn_array *array, char *base, ptrdiff_t r,
             const real *from, ptrdiff_t n_columns)
{
    char *rows[LANES] = {NULL};
    ptrdiff_t n = least(t->task->n_rows - r, LANES);

    for (ptrdiff_t i = 0; i < n; i++) {
        ONE_BY_ONE;
        rows[i] = base + row_offset(t, array, r + i);
    }
    store_lanes(array, rows, n, from, n_columns, t->staging);
}

/* Are these codes of 16 bits, as a layer makes of its keys and values? */
static bool
are_shorts(const attn_array *array)
{
    return REAL_BITS == 32 && TERMS == 1 && array->dtype == ATTN_I16;
}

/* Are these integers with scales, of 8 or 16 bits, which kernel/bytes multiplies? */
static bool
are_integers(const attn_array *array)
{
    return (REAL_BITS == 32 && TERMS == 1 && array->dtype == ATTN_I8) ||
           are_shorts(array);
}

#if REAL_BITS == 32 && TERMS == 1
/* Rounds the queries to codes: core/bytes.h. */
static NOINLINE void
load_codes(task_rows *t)
{
    const attn_array *query = &t->p->query;
    ptrdiff_t n_rows = t->task->n_rows, dim = t->p->head_dim, width = t->key_width;
    real scale = (real)t->p->scale;
    bool shorts = are_shorts(&t->p->key);
    bool splits = !t->row_form && !shorts && t->bytes->split_row != NULL;
    real largest = shorts ? ATTN_LARGEST_SHORT : ATTN_LARGEST_CODE;

    t->uncoded_rows = 0;
    memset(t->factor, 0, sizeof t->factor);
    for (ptrdiff_t r = 0; r < (t->row_form ? row_form_rows(n_rows) : n_rows); r++) {
        real *row = t->query + r * width, unit, back;
        memset(row, 0, (size_t)width * sizeof *row);
        if (r < n_rows) {
            const char *from = t->task->query + row_offset(t, query, r);
            stage_row(row, from, query->column_stride, dim, query->dtype);
            bool has_codes =
                t->bytes->round_row(row, width, largest, row, &unit, &back);
            t->factor[r] = unit * scale * back;
            if (splits) {
                t->bytes->split_row(row, width);
            }
            if (shorts && !has_codes) {
                memset(row, 0, (size_t)width * sizeof *row);
                t->factor[r] = NAN;
            } else {
                t->uncoded_rows |= (uint64_t)!has_codes << r;
            }
        }
    }
    for (ptrdiff_t r = 0; r < n_rows && !t->row_form; r += LANES) {
        const real *rows[LANES] = {NULL};
        ptrdiff_t n = least(n_rows - r, LANES);
        for (ptrdiff_t i = 0; i < n; i++) {
            rows[i] = t->query + (r + i) * width;
        }
        transpose_in(t->pairs + r / WIDTH * WIDTH * width / 2 + r % WIDTH, WIDTH, rows,
                     n, width / 2, NULL);
    }
}
#endif

static void
load_queries(task_rows *t)
{
#if REAL_BITS == 32 && TERMS == 1
    if (are_integers(&t->p->key)) {
        load_codes(t);
        return;
    }
#endif
    const attn_problem *p = t->p;
    const attn_array *query = &p->query;
    ptrdiff_t n_rows = t->task->n_rows;
    ptrdiff_t used = (p->head_dim + TERMS - 1) / TERMS;
    bool lanes = !t->row_form || HAS_UNIT;
    real scale = (real)p->scale;

    for (ptrdiff_t r = 0; r < n_rows && lanes; r += LANES) {
        operand *tile = t->query + r / WIDTH * WIDTH * t->key_width + r % WIDTH;
        const char *rows[LANES] = {NULL};
        ptrdiff_t n = row_addresses(t, query, t->task->query, r, rows);
        load_lanes(query, rows, n, p->head_dim, t->staging, tile,
                   TERMS == 1 ? &scale : NULL);
        for (ptrdiff_t k = used; k < t->key_width; k++) {
            memset(tile + k * WIDTH, 0, LANES * sizeof *tile);
        }
    }
    for (ptrdiff_t r = 0; r < row_form_rows(n_rows) && !lanes; r++) {
        operand *to = t->query + r * t->key_width;
        memset(to, 0, (size_t)t->key_width * sizeof *to);
        if (r < n_rows) {
            stage_row(to, t->task->query + row_offset(t, query, r),
                      query->column_stride, p->head_dim, query->dtype);
            scale_row(to, t->key_width, scale);
        }
    }
}

/* The first row of the next task of the thread: a task before this one or, where there is none, the
 * last one of the next head. */
static ptrdiff_t
next_task_row(const task_rows *t)
{
    ptrdiff_t n_rows = t->p->group * t->task->n_queries, step = t->p->task_rows;
    ptrdiff_t first = t->task->first_row - step;

    return first < 0 ? n_rows + (n_rows - 1) / step * step : first;
}

/* The queries of the next task of the thread. */
static prefetch
queries_prefetch(const task_rows *t)
{
    const attn_array *query = &t->p->query;
    ptrdiff_t n_rows = t->p->group * t->task->n_queries, first = next_task_row(t);

    return prefetch_of(
        query, t->task->query + row_offset(t, query, first - t->task->first_row),
        t->p->head_dim, least(t->p->task_rows, n_rows - first % n_rows));
}

/* The rows of the output, if there is one. */
static prefetch
output_prefetch(const task_rows *t)
{
    const attn_array *output = &t->p->output;

    if (t->task->output == NULL) {
        return (prefetch){.n_rows = 0};
    }
    return prefetch_of(output, t->task->output + row_offset(t, output, 0),
                       t->p->value_dim, t->task->n_rows);
}

#endif
