/* The work of a linear task whose matrix is quantised. The kernel of float32 loads its rows
 * and stores its outputs; in between are integers, and what this room has. */
#ifndef ATTN_KERNEL_INTEGER_TASK_H
#define ATTN_KERNEL_INTEGER_TASK_H

#include "kernel/arena.h"
#include "kernel/integer/sizes.h"

typedef struct {
    const attn_linear_problem *l;
    const attn_quantized *q;
    attn_integer_unit unit;
    int n_digits;      /* terms of a number of x: 1 where rows are rounded, or DIGITS */
    ptrdiff_t part;    /* rows of W whose sum is one: a group, or some of it */
    ptrdiff_t n_parts; /* of all rows */
    ptrdiff_t chunk;   /* parts that are multiplied at a time */
    ptrdiff_t n_converted; /* parts whose factors are converted at a time, at most */
    ptrdiff_t n_code_rows;
    ptrdiff_t row;       /* numbers from row to row of x, filled up with zeros */
    ptrdiff_t most_rows; /* of x, that are loaded at a time */
    float *reals;        /* (row): a row of numbers */
    term *terms;         /* (rows, n_digits, row) */
    float *scales;       /* (rows, n_parts) of these terms */
    /* (rows, n_digits, n_parts): what their products begin with; of byte digits (rows, SPLIT_BYTES,
     * sums of 16 bits), as two halves. */
    int32_t *begins;
    float *minimum_by; /* (rows, n_parts): what minimums are multiplied by */
    float *factors;    /* (2, n_converted, PANEL): scales and minimums */
    int32_t *own;      /* (chunk, PANEL): what crossed products of columns begin with */
    void *ready;       /* a chunk of a panel; NULL where codes are ready as they lie */
    float *output;     /* (rows, OUTPUT_ROW) */
    float *staged;     /* (OUTPUT_COLUMNS), for the bias */
} integer_work;

/* How many rows of W are a part. */
static ptrdiff_t
part_of(const attn_quantized *q)
{
    return !q->rounds_rows && q->group > ATTN_BLOCK ? ATTN_BLOCK : q->group;
}

/* How many parts are multiplied at a time: as many as the first-level cache holds, ready; one, if a
 * part is not a whole group. */
static ptrdiff_t
chunk_of(const attn_quantized *q)
{
    ptrdiff_t bytes = PANEL * (ptrdiff_t)sizeof(code);
    ptrdiff_t n = CHUNK_BYTES / (bytes * part_of(q));

    return n > 1 && part_of(q) == q->group ? n : 1;
}

static code_form
form_of(const attn_quantized *q)
{
    return q->bits == 8        ? CODES_8
           : q->bits == 6      ? CODES_6
           : q->bits == 5      ? CODES_5
           : q->values != NULL ? CODES_OF_VALUES
                               : CODES_4;
}

/* Are products of n rounded rows crossed? Those of many are, but not with narrow codes. */
static bool
are_crossed(const attn_quantized *q, ptrdiff_t n)
{
    return HAS_CROSSED && q->rounds_rows && n >= CROSSED_FROM &&
           (q->bits == 8 || q->values != NULL);
}

/* Are the digits of n split rows bytes? Those of several are, with codes of 4 bits. */
static bool
are_split_to_bytes(const attn_quantized *q, ptrdiff_t n)
{
    return HAS_SPLIT_BYTES && !q->rounds_rows && n >= SHARED_FROM &&
           form_of(q) == CODES_4;
}

/* What is added to codes, or values, as products take them. */
static int32_t
offset_of(const attn_quantized *q)
{
    return q->bits == 8 || q->values != NULL ? OFFSET : q->zero;
}

/* Are codes of 8 bits ready as they lie? */
static bool
is_always_ready(const attn_quantized *q)
{
    return q->bits == 8 && OFFSET == 0 && ARE_BYTES;
}

/* Rows of x that are loaded at a time. */
static ptrdiff_t
rows_at_a_time(const attn_linear_problem *l, int n_digits, ptrdiff_t row)
{
    ptrdiff_t size = n_digits * (ptrdiff_t)sizeof(term);
    ptrdiff_t n = MOST_BYTES / (size * (row > 0 ? row : 1));
    ptrdiff_t n_rows = l->batch.n * l->n_rows;

    n = n > MOST_ROWS ? MOST_ROWS : n < LEAST_ROWS ? LEAST_ROWS : n;
    return n < n_rows ? n : n_rows;
}

/* Lays out the memory of a task, behind its work; returns the bytes it takes. With memory NULL it
 * only counts them. */
static size_t
lay_out_integers(const attn_linear_problem *l, char *memory, integer_work *w)
{
    const attn_quantized *q = l->quantized;
    arena a = {memory, 0};

    ptrdiff_t n_shorts = attn_divide_up(part_of(q), SHORTS_ROWS);

    arena_take(&a, sizeof *w);
    w->l = l;
    w->q = q;
    w->n_digits = q->rounds_rows ? 1 : DIGITS;
    w->part = part_of(q);
    w->n_parts = attn_divide_up(l->n_in, w->part);
    w->chunk = chunk_of(q) < w->n_parts ? chunk_of(q) : w->n_parts;
    w->n_code_rows = attn_code_rows(l->n_in, q->bits);
    w->row = attn_divide_up(w->n_code_rows, NUMBERS) * NUMBERS;
    w->most_rows = rows_at_a_time(l, w->n_digits, w->row);
    ptrdiff_t n_whole =
        attn_divide_up(w->most_rows, WHOLE_ROWS) * WHOLE_ROWS * w->n_digits;
    ptrdiff_t n_sums = w->most_rows * w->n_parts;
    w->reals = arena_reals(&a, w->row);
    w->terms = arena_take(&a, (size_t)(n_whole * w->row + BEYOND) * sizeof(term));
    w->scales = arena_reals(&a, n_sums);
    ptrdiff_t n_begins = are_split_to_bytes(q, w->most_rows)
                             ? w->most_rows * SPLIT_BYTES * n_shorts
                             : w->most_rows * w->n_digits;
    w->begins = arena_take(&a, (size_t)(n_begins * w->n_parts) * sizeof(int32_t));
    w->minimum_by = arena_reals(&a, q->minimum.fine == NULL ? 0 : n_sums);
    w->n_converted = w->n_parts < CONVERTED_PARTS ? w->n_parts : CONVERTED_PARTS;
    w->n_converted = w->n_converted > w->chunk ? w->n_converted : w->chunk;
    w->factors = arena_reals(&a, 2 * w->n_converted * PANEL);
    w->ready = NULL;
    w->own = NULL;
    if (w->most_rows >= SHARED_FROM && !is_always_ready(q)) {
        ptrdiff_t n_rows = w->chunk * w->part;
        n_rows = n_rows < w->n_code_rows ? n_rows : w->n_code_rows;
        w->ready = arena_take(&a, (size_t)((n_rows + BEYOND) * PANEL) * sizeof(code));
        w->own =
            arena_take(&a, (size_t)(HAS_CROSSED * w->chunk * PANEL) * sizeof *w->own);
    }
    w->output = arena_reals(&a, w->most_rows * OUTPUT_ROW);
    w->staged = arena_reals(&a, OUTPUT_COLUMNS);
    return a.used;
}

/* Rows of W of n parts, with those that fill up the last one. */
static ptrdiff_t
rows_of_parts(const integer_work *w, ptrdiff_t part, ptrdiff_t n)
{
    ptrdiff_t left = w->n_code_rows - part * w->part;
    return left < n * w->part ? left : n * w->part;
}

#endif
