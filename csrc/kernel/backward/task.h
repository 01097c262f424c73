/* The work of attention backwards: what is computed, and the memory for it. */
#ifndef ATTN_KERNEL_BACKWARD_TASK_H
#define ATTN_KERNEL_BACKWARD_TASK_H

#include "core/backward.h"
#include "core/sequences.h"
#include "kernel/arena.h"
#include "kernel/attention/tile_form/span.h"
#include "kernel/operands/matrix.h"

enum {
    LINE = ATTN_TASK_ROWS, /* reals from key to key of what has a row in each lane, */
    FACTOR_LINE = LINE / TERMS, /* and operands of factors of sums over rows */
    MAX_PREFETCHES = 8
};

/* A block of keys that a matrix unit transposed. */
typedef struct {
    ptrdiff_t first, end; /* keys; no block if there are none */
    bool finite;
} transposed_block;

/* Rows as operands, (rows / TERMS, columns). */
typedef struct {
    operand *memory; /* for them, two vectors more in each; they may lie elsewhere */
    matrix rows;
    bool are_there;
    bool are_finite; /* all rows of the tile; false if that is not known */
} kept_rows;

typedef struct {
    task_rows rows; /* of a tile, scaled queries in the lanes */
    const attn_backward_problem *g;
    const attn_backward_task *part;
    ptrdiff_t b, kv_head;
    ptrdiff_t end_tile; /* of the part in this batch, which may have fewer tiles */
    attn_task task;
    bool is_loaded; /* what the products need of the task's rows */

    operand *grad_output; /* (tiles, Dv / TERMS, WIDTH) of the rows */
    real *scores;         /* (BLOCK, LINE) */
    real *grad_weights;   /* (BLOCK, LINE) */
    operand *weights;     /* (BLOCK, FACTOR_LINE) */
    operand *grad_scores; /* (BLOCK, FACTOR_LINE) those of the products */
    operand *grad_pairs;  /* (BLOCK / TERMS, LINE) the same, for sums over keys */
    real *bias; /* (BLOCK, LINE) the bias, then its gradient, where there is one */
    real *query_sums; /* (rows of the group, D) if its gradient is of 16 bits */
    real *key_sums;   /* (CHUNK, D) likewise, of the chunk at first_key */
    real *value_sums; /* (CHUNK, Dv) */
    ptrdiff_t first_key;
    ptrdiff_t fresh_tile, fresh_key; /* gradients from there on are not cleared */
    kept_rows terms[2]; /* the tile's of query and grad_output, for sums over rows */
    real *query_lanes;  /* (D, LINE) sums of the tile's queries */
    /* Of a matrix unit alone: */
    operand *transposed; /* (blocks, D / UNIT_ROWS, steps, tile) keys, transposed */
    int n_transposed;    /* blocks that it has room for, */
    /* and which are there: */
    transposed_block transposed_blocks[ATTN_CHUNK / ATTN_BLOCK];
    real lse[ATTN_TASK_ROWS];
    real delta[ATTN_TASK_ROWS];
    prefetch prefetches[MAX_PREFETCHES]; /* a stack: products run them meanwhile */
    int n_prefetches;
} backward_work;

/* Operands of n columns, rounded up to what an instruction takes. */
static ptrdiff_t
operands_of(ptrdiff_t n)
{
    return round_up(n, SUM_TERMS) / TERMS;
}

static operand *
arena_operands(arena *a, ptrdiff_t n)
{
    return arena_take(a, (size_t)n * sizeof(operand));
}

/* Is there a gradient, and of 16 bits? */
static bool
is_rounded(const attn_array *gradient)
{
    return gradient->data != NULL && gradient->dtype != REAL_DTYPE;
}

/* Blocks of keys that a matrix unit keeps transposed: a chunk, unless that is too much for the
 * second-level cache. */
static ptrdiff_t
count_transposed(const attn_problem *p)
{
    return p->head_dim <= 256 ? ATTN_CHUNK / ATTN_BLOCK : 1;
}

/* What only a matrix unit needs. */
static void
lay_out_for_unit(const attn_problem *p, arena *a, backward_work *w)
{
    ptrdiff_t key_columns = round_up(p->head_dim, LANES);

    w->n_transposed = (int)count_transposed(p);
    w->transposed =
        arena_operands(a, w->n_transposed * key_columns * ATTN_BLOCK / TERMS);
}

/* The rows of both arrays, one after the other in the same memory if they are long. */
static ONE_COPY void
lay_out_terms(const attn_problem *p, arena *a, kept_rows terms[2])
{
    ptrdiff_t n = LINE / TERMS * (most(p->head_dim, p->value_dim) + 3 * LANES);

    terms[0].memory = arena_operands(a, n);
    terms[1].memory = n <= LINE * 512 ? arena_operands(a, n) : terms[0].memory;
}

/* As lay_out_attention. */
static ONE_COPY size_t
lay_out_backward(const attn_backward_problem *g, char *memory, backward_work *w)
{
    const attn_problem *p = &g->attention;
    arena a = {memory, 0};

    arena_take(&a, sizeof *w);
    w->g = g;
    w->rows.p = p;
    w->rows.row_form = false;
    w->rows.key_width = operands_of(p->head_dim);
    w->rows.query = arena_operands(&a, w->rows.key_width * ATTN_TASK_ROWS);
    w->rows.staging = arena_reals(&a, LANES * SLAB_COLUMNS);
    w->rows.slab = arena_operands(&a, ATTN_BLOCK / TERMS * SLAB_COLUMNS);
    w->grad_output = arena_operands(&a, operands_of(p->value_dim) * ATTN_TASK_ROWS);
    w->scores = arena_reals(&a, ATTN_BLOCK * LINE);
    w->grad_weights = arena_reals(&a, ATTN_BLOCK * LINE);
    lay_out_terms(p, &a, w->terms);
    w->query_lanes = arena_reals(&a, round_up(p->head_dim, LANES) * LINE);
    w->weights = (operand *)w->scores; /* reals take their place */
    w->grad_scores = w->grad_pairs = (operand *)w->grad_weights;
    if (TERMS > 1) {
        w->weights = arena_operands(&a, ATTN_BLOCK * FACTOR_LINE);
        w->grad_scores = arena_operands(&a, ATTN_BLOCK * FACTOR_LINE);
        w->grad_pairs = arena_operands(&a, ATTN_BLOCK / TERMS * LINE);
    }
    if (is_rounded(&g->grad_query)) {
        w->query_sums = arena_reals(&a, p->group * p->n_queries * p->head_dim);
    }
    if (is_rounded(&g->grad_key)) {
        w->key_sums = arena_reals(&a, ATTN_CHUNK * p->head_dim);
    }
    if (is_rounded(&g->grad_value)) {
        w->value_sums = arena_reals(&a, ATTN_CHUNK * p->value_dim);
    }
    if (HAS_UNIT) {
        lay_out_for_unit(p, &a, w);
    }
    if (p->bias.data != NULL) {
        w->rows.bias = arena_reals(&a, ATTN_TASK_ROWS * ATTN_BLOCK);
        w->bias = arena_reals(&a, ATTN_BLOCK * LINE);
    }
    return a.used;
}

static size_t
backward_workspace_size(const attn_backward_problem *g)
{
    backward_work w;
    return lay_out_backward(g, NULL, &w);
}

static backward_work *
open_backward(const attn_backward_problem *g, const attn_worker *worker)
{
    backward_work *w = worker->workspace;

    lay_out_backward(g, worker->workspace, w);
    return w;
}

/* The end of those rows of the tile, from r on, that are of one head. */
static ptrdiff_t
end_of_head(const attn_task *task, ptrdiff_t r)
{
    ptrdiff_t head = (task->first_row + r) / task->n_queries;

    return least(task->n_rows, (head + 1) * task->n_queries - task->first_row);
}

/* Where an array that has a row for each query has the group's first. */
static char *
group_base(const backward_work *w, const attn_array *array)
{
    const attn_problem *p = &w->g->attention;
    ptrdiff_t start = attn_first_query(p, w->b);

    return attn_address(array, &p->batch, w->b, w->kv_head * p->group, start);
}

/* Row r of the tile in an array that has a row for each query. */
static char *
query_row(const backward_work *w, const attn_array *array, ptrdiff_t r)
{
    return group_base(w, array) + row_offset(&w->rows, array, r);
}

/* The row of a key in an array of gradients. */
static char *
key_grad_row(const backward_work *w, const attn_array *array, ptrdiff_t j)
{
    const attn_problem *p = &w->g->attention;
    ptrdiff_t start = attn_first_key(p, w->b);

    return attn_address(array, &p->batch, w->b, w->kv_head, start + j);
}

/* Where sums are: in rows of the gradient, or in the workspace if that is rounded. */
typedef struct {
    real *at;
    ptrdiff_t row; /* reals from one to the next */
} gradient_rows;

/* The sums of key, or value, j and of those behind it. */
static gradient_rows
key_sums_from(const backward_work *w, const attn_array *gradient, ptrdiff_t j)
{
    const attn_problem *p = &w->g->attention;

    if (!is_rounded(gradient)) {
        return (gradient_rows){(real *)(void *)key_grad_row(w, gradient, j),
                               gradient->row_stride / (ptrdiff_t)sizeof(real)};
    }
    j -= w->first_key;
    return gradient == &w->g->grad_key
               ? (gradient_rows){w->key_sums + j * p->head_dim, p->head_dim}
               : (gradient_rows){w->value_sums + j * p->value_dim, p->value_dim};
}

/* The sums of row r of the tile, and of those behind it of the same head. */
static ONE_COPY gradient_rows
query_sums_from(const backward_work *w, ptrdiff_t r)
{
    const attn_array *gradient = &w->g->grad_query;
    ptrdiff_t dim = w->g->attention.head_dim;

    if (!is_rounded(gradient)) {
        return (gradient_rows){(real *)(void *)query_row(w, gradient, r),
                               gradient->row_stride / (ptrdiff_t)sizeof(real)};
    }
    return (gradient_rows){w->query_sums + (w->task.first_row + r) * dim, dim};
}

#endif
