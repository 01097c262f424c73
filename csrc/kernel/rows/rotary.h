/* Tokens' heads on their way from a projection to attention, or into a cache: normalized,
 * turned by their positions, mixed, and rounded as if each step's result were stored. */
#ifndef ATTN_KERNEL_ROWS_ROTARY_H
#define ATTN_KERNEL_ROWS_ROTARY_H

#include "core/rotary.h"
#include "core/tiers.h"
#include "kernel/arena.h"
#include "kernel/operands/round.h"
#include "kernel/rows/norm.h"
#include "kernel/rows/quantise.h"
#include <math.h>
#include <string.h>

typedef struct {
    real *head;   /* (D) and room for zeros behind it */
    real *heads;  /* (H, D), of a token, if they are normalized together; or NULL */
    real *pairs;  /* (D) first numbers of pairs, then second ones, if interleaved */
    char *halves; /* (D) of 16 bits */
    const attn_byte_kernel *bytes;
} rotary_work;

static size_t
lay_out_rotary(const attn_rotary_problem *p, char *memory, rotary_work *w)
{
    bool together = p->norm != NULL && p->norm->n_columns != p->head_dim;
    arena a = {memory, 0};

    w->head = arena_reals(&a, round_up(p->head_dim, ATTN_CODE_UNIT));
    w->heads = together ? arena_reals(&a, p->n_heads * p->head_dim) : NULL;
    w->pairs = arena_reals(&a, p->head_dim);
    w->halves = arena_take(&a, (size_t)p->head_dim * sizeof(uint16_t));
    return a.used;
}

static size_t
rotary_workspace_size(const attn_rotary_problem *p)
{
    rotary_work w;
    return lay_out_rotary(p, NULL, &w);
}

/* Turns n pairs of numbers: each product, and their sum, is rounded. */
static void
rotate_pairs(real *one, real *two, const real *cosines, const real *sines, ptrdiff_t n)
{
    ptrdiff_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        v_real a = v_load(one + k), b = v_load(two + k);
        v_real c = v_load(cosines + k), s = v_load(sines + k);
        v_store(one + k, v_sub(v_mul(a, c), v_mul(b, s)));
        v_store(two + k, v_add(v_mul(b, c), v_mul(a, s)));
    }
    for (; k < n; k++) {
        ONE_BY_ONE;
        real a = one[k], b = two[k];
        one[k] = a * cosines[k] - b * sines[k];
        two[k] = b * cosines[k] + a * sines[k];
    }
}

/* Turns n pairs of neighbours, which it separates in `pairs`. */
static void
rotate_neighbours(real *row, real *pairs, const real *cos_sin, ptrdiff_t n)
{
    for (ptrdiff_t k = 0; k < n; k++) {
        pairs[k] = row[2 * k];
        pairs[n + k] = row[2 * k + 1];
    }
    rotate_pairs(pairs, pairs + n, cos_sin, cos_sin + n, n);
    for (ptrdiff_t k = 0; k < n; k++) {
        row[2 * k] = pairs[k];
        row[2 * k + 1] = pairs[n + k];
    }
}

/* Numbers of n pairs become their sums and differences. */
static INLINE void
add_and_subtract(real *one, real *two, ptrdiff_t n)
{
    ptrdiff_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        v_real a = v_load(one + k), b = v_load(two + k);
        v_store(one + k, v_add(a, b));
        v_store(two + k, v_sub(a, b));
    }
    for (; k < n; k++) {
        real a = one[k], b = two[k];
        one[k] = a + b;
        two[k] = a - b;
    }
}

/* Multiplies a head by Hadamard matrices, in blocks, as core/rotary.h explains. */
static NOINLINE void
mix_head(real *head, ptrdiff_t n)
{
    ptrdiff_t size = n & -n; /* of a block */
    real factor = (real)(1 / sqrt((double)size));

    for (ptrdiff_t h = 1; h < size; h *= 2) {
        for (ptrdiff_t k = 0; k < n; k += 2 * h) {
            add_and_subtract(head + k, head + k + h, h);
        }
    }
    for (ptrdiff_t k = 0; k < n; k++) {
        head[k] *= factor;
    }
}

/* Loads the heads of a token, and normalizes them together. */
static NOINLINE void
load_heads(const attn_rotary_problem *p, const rotary_work *w, ptrdiff_t b,
           ptrdiff_t token)
{
    for (ptrdiff_t h = 0; h < p->n_heads; h++) {
        load_row(w->heads + h * p->head_dim,
                 attn_address(&p->input, &p->batch, b, h, token),
                 p->input.column_stride, p->head_dim, p->input.dtype);
    }
    normalize_row(p->norm, w->heads, NULL, w->heads, NULL);
}

/* Loads a head, normalized: from the input, or from what `load_heads` has loaded. */
static void
load_head(const attn_rotary_problem *p, const rotary_work *w, const char *input,
          ptrdiff_t h)
{
    ptrdiff_t n = p->head_dim;

    if (w->heads != NULL) {
        memcpy(w->head, w->heads + h * n, (size_t)n * sizeof(real));
    } else {
        load_row(w->head, input, p->input.column_stride, n, p->input.dtype);
        if (p->norm != NULL) {
            normalize_row(p->norm, w->head, NULL, w->head, NULL);
        }
    }
    if (p->norm != NULL) {
        round_row(w->head, n, p->dtype, w->halves);
    }
}

/* Turns, mixes and stores the head that is loaded. */
static void
run_head(const attn_rotary_problem *p, const rotary_work *w, const char *cos_sin,
         char *output, char *scale)
{
    ptrdiff_t n = p->head_dim, n_pairs = p->rotary_dim / 2;
    const real *angles = (const real *)(const void *)cos_sin;

    if (angles != NULL && p->interleaved) {
        rotate_neighbours(w->head, w->pairs, angles, n_pairs);
    } else if (angles != NULL) {
        rotate_pairs(w->head, w->head + n_pairs, angles, angles + n_pairs, n_pairs);
    }
    if (angles != NULL) {
        round_row(w->head, n, p->dtype, w->halves);
    }
    if (p->mixed) {
        mix_head(w->head, n);
    }
    if (p->output.dtype == ATTN_I16) {
        code_head(w->bytes, w->head, n, output, scale);
        return;
    }
    if (scale != NULL) {
        quantise_head(w->head, n, output, p->output.column_stride, scale);
        return;
    }
    round_row(w->head, n, p->cache_dtype, w->halves);
    store_row(output, p->output.column_stride, w->head, n, p->output.dtype);
}

/* Where a head's row of the output, or its scale, lies; NULL without the array. */
static char *
rotary_row(const attn_rotary_problem *p, const attn_array *to, ptrdiff_t page_stride,
           ptrdiff_t b, ptrdiff_t h, ptrdiff_t row)
{
    if (p->pages == NULL || to->data == NULL) {
        return attn_address(to, &p->batch, b, h, row);
    }
    return to->data + attn_page_at(p->pages, b, row) * page_stride +
           h * to->head_stride + row % ATTN_BLOCK * to->row_stride;
}

static void
run_rotary(const attn_rotary_problem *p, ptrdiff_t first, ptrdiff_t n,
           const attn_worker *worker)
{
    rotary_work w;

    lay_out_rotary(p, worker->workspace, &w);
    w.bytes = worker->tier->bytes;
    for (ptrdiff_t t = first; t < first + n; t++) {
        bool packed = p->starts != NULL;
        ptrdiff_t b = packed
                          ? attn_batch_at(attn_packed_start, p->starts, p->batch.n, t)
                          : t / p->n_tokens;
        ptrdiff_t token = packed ? t : t % p->n_tokens;
        ptrdiff_t to = token - attn_packed_start(p->starts, b) +
                       (p->past_lengths == NULL ? 0 : p->past_lengths[b]);
        if (p->lengths != NULL && to >= p->lengths[b]) {
            continue;
        }
        if (w.heads != NULL) {
            load_heads(p, &w, b, token);
        }
        for (ptrdiff_t h = 0; h < p->n_heads; h++) {
            load_head(p, &w, attn_address(&p->input, &p->batch, b, h, token), h);
            run_head(p, &w, attn_address(&p->cos_sin, &p->batch, b, h, token),
                     rotary_row(p, &p->output, p->page_stride, b, h, to),
                     rotary_row(p, &p->scale, p->scale_page_stride, b, h, to));
        }
    }
}

#endif
