/* The work of a linear task whose matrix is quantised. The kernel of float32 loads its rows
 * and stores its outputs; in between are integers, and what this room has. */
#ifndef ATTN_KERNEL_INTEGER_TASK_H
#define ATTN_KERNEL_INTEGER_TASK_H

#include "core/linear.h"
#include "kernel/arena.h"

#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

enum {
    PANEL = ATTN_PANEL_COLUMNS,
    PANEL_REALS = PANEL / LANES,      /* vectors of a panel's columns */
    QUAD_ROW = PANEL * ATTN_QUAD,     /* bytes of a panel's quads of the same rows */
    OUTPUT_COLUMNS = 8 * PANEL,       /* that are stored at a time */
    OUTPUT_ROW = OUTPUT_COLUMNS + 16, /* not a multiple of 4 KB's divisors */
    MOST_ROWS = ATTN_TASK_ROWS,       /* that are loaded at a time; fewer where they */
    MOST_BYTES = 1 << 20,             /* would be larger, but at least LEAST_ROWS */
    LEAST_ROWS = 8,
    NUMBERS = 16 /* of a row, that are rounded at a time */
};

_Static_assert(PANEL % LANES == 0 && NUMBERS % LANES == 0, "whole vectors");

typedef struct {
    const attn_linear_problem *l;
    const attn_quantized *q;
    ptrdiff_t part;    /* rows of W whose sum is one: a group, or a chain of it */
    ptrdiff_t n_parts; /* of all rows */
    ptrdiff_t n_code_rows;
    ptrdiff_t row;       /* numbers from row to row of x, filled up with zeros */
    ptrdiff_t most_rows; /* of x, that are loaded at a time */
    float *reals;        /* (rows, row); a single one where rows are rounded */
    term *terms;         /* (rows, row), where they are */
    float *scales;       /* (rows, n_parts) of these terms, */
    int32_t *totals;     /* and their sums */
    float *minimum_by;   /* (rows, n_parts): what minimums are multiplied by */
    float *factors;      /* (2, PANEL): scales and minimums of a part of a panel */
    int8_t *codes;       /* (part, PANEL) of 4 bits, as 8 */
    float *output;       /* (rows, OUTPUT_ROW) */
    float *staged;       /* (OUTPUT_COLUMNS), for the bias */
} integer_work;

/* How many rows of W are a part. */
static ptrdiff_t
part_of(const attn_quantized *q)
{
    return !q->rounds_rows && q->group > ATTN_BLOCK ? ATTN_BLOCK : q->group;
}

/* Rows of x that are loaded at a time. */
static ptrdiff_t
rows_at_a_time(const attn_linear_problem *l, ptrdiff_t row)
{
    ptrdiff_t size = l->quantized->rounds_rows ? sizeof(term) : sizeof(float);
    ptrdiff_t n = MOST_BYTES / (size * (row > 0 ? row : 1));
    ptrdiff_t n_rows = l->batch.n * l->n_rows;

    n = n > MOST_ROWS ? MOST_ROWS : n < LEAST_ROWS ? LEAST_ROWS : n;
    return n < n_rows ? n : n_rows;
}

/* Lays the work of a task out behind itself in memory; returns the bytes that takes. With
 * memory NULL it does nothing else. */
static size_t
lay_out_integers(const attn_linear_problem *l, char *memory, integer_work *w)
{
    const attn_quantized *q = l->quantized;
    arena a = {memory, 0};

    arena_take(&a, sizeof *w);
    w->l = l;
    w->q = q;
    w->part = part_of(q);
    w->n_parts = attn_divide_up(l->n_in, w->part);
    w->n_code_rows = attn_code_rows(l->n_in);
    w->row = attn_divide_up(l->n_in, NUMBERS) * NUMBERS;
    w->most_rows = rows_at_a_time(l, w->row);
    ptrdiff_t n_numbers = w->most_rows * w->row;
    ptrdiff_t n_sums = w->most_rows * w->n_parts;
    w->reals = arena_reals(&a, q->rounds_rows ? w->row : n_numbers);
    w->terms = NULL;
    w->codes = NULL;
    if (q->rounds_rows) {
        w->terms = arena_take(&a, (size_t)n_numbers * sizeof(term));
        w->scales = arena_reals(&a, n_sums);
        w->totals = arena_take(&a, (size_t)n_sums * sizeof(int32_t));
    }
    w->minimum_by = arena_reals(&a, q->minimum.fine == NULL ? 0 : n_sums);
    w->factors = arena_reals(&a, 2 * PANEL);
    if (q->bits == 4) {
        w->codes = arena_take(&a, (size_t)(w->part * PANEL));
    }
    w->output = arena_reals(&a, w->most_rows * OUTPUT_ROW);
    w->staged = arena_reals(&a, OUTPUT_COLUMNS);
    return a.used;
}

/* Rows of W of a part, with those that fill up the last one. */
static ptrdiff_t
part_rows(const integer_work *w, ptrdiff_t part)
{
    ptrdiff_t left = w->n_code_rows - part * w->part;
    return left < w->part ? left : w->part;
}

#endif
