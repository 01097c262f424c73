/* Tokens' heads on their way from a projection to attention, or into a cache: normalized
 * (QK norm), one by one or all of a token together; then each is rotated by its position
 * (rotary embedding), mixed (for a cache of integers) and rounded. */
#ifndef ATTN_CORE_ROTARY_H
#define ATTN_CORE_ROTARY_H

#include "core/array.h"
#include "core/extras.h"
#include "core/norm.h"
#include "core/tasks.h"

/* To mix a head is to multiply it by an orthogonal matrix, its own inverse, that spreads its large
 * numbers over others. Each block of b numbers, b the largest power of two that divides D, is
 * multiplied by the Hadamard matrix of b rows: with h = 1, 2, 4, .. below b, x[k] and x[k + h]
 * become their sum and difference, where k has a 0 at h's bit. Then each number is multiplied by
 * 1 / sqrt(b), rounded to the arithmetic's dtype.
 *
 * After all other steps heads are rounded to `dtype`, as if stored, and at the end to `cache_dtype`. If
 * that is ATTN_I8, a head becomes integers from -127 to 127 and a scale, the best of ATTN_SCALES pairs.
 * With u = max |x| / 127, and y = x / u, clipped to [-127, 127], pair i has the factor f =
 * ATTN_FIRST_FACTOR - i * ATTN_FACTOR_STEP, the integers c nearest to y * f, ties to even, and the
 * scale u / f. Of its rests, y * f - c rounded to 256ths, squares add up exactly, so that the sum has
 * no order. Divided by f^2, in double, it is the pair's error; the first pair with the least one is
 * taken. All else is in the arithmetic's dtype; the scale is rounded to float. All integers are 0 if
 * u as a float, or the scale, is 0; they are 0 and the scale is NaN if a number is not finite.
 *
 * If the output is ATTN_I16, a head becomes codes as core/bytes.h explains, and its scale is NaN if a
 * number is not finite. */
#define ATTN_SCALES 16
#define ATTN_FIRST_FACTOR (1 + 1. / 256) /* below 127.5 / 127: 127 remains 127 */
#define ATTN_FACTOR_STEP (1. / 256)

typedef struct {
    attn_batch batch;
    ptrdiff_t n_heads;
    ptrdiff_t n_tokens;
    ptrdiff_t head_dim;
    attn_dtype dtype;
    attn_dtype cache_dtype;
    attn_array input;              /* (B, H, tokens, D), no wider than `dtype` */
    const attn_norm_problem *norm; /* of (D,), each head, or (H * D,), all; or NULL */
    attn_array cos_sin;          /* (B, H, tokens, rotary_dim), adjacent columns in the
                                    * arithmetic's dtype, cosines before sines; or none */
    ptrdiff_t rotary_dim;        /* columns, the first ones, an even number */
    bool interleaved;            /* pairs are neighbours, else rotary_dim / 2 apart */
    bool mixed;                  /* see above */
    attn_array output;           /* (B, H, rows, D); may be the input */
    attn_array scale;            /* (B, H, rows) floats, of integers; or none */
    const int64_t *past_lengths; /* (B,) rows of the output that come before, */
    const int64_t *lengths;      /* and where it ends; or NULL, with one batch axis */
    const int64_t *starts;       /* (B + 1,) where input and cos_sin are packed and the
                                    * output is not; or NULL */
    const attn_pages *pages;     /* where the output's rows lie in pages, of */
    ptrdiff_t page_stride;       /* bytes; or NULL */
    ptrdiff_t scale_page_stride; /* of scales */
} attn_rotary_problem;

typedef struct {
    size_t (*workspace_size)(const attn_rotary_problem *);
    /* Tokens first .. first + n - 1 of all batches in a line. */
    void (*run)(const attn_rotary_problem *, ptrdiff_t first, ptrdiff_t n,
                const attn_worker *);
} attn_rotary_kernel;

double attn_rotary_work(const attn_rotary_problem *); /* multiplications, roughly */

/* -1 when memory runs out, else 0. */
int attn_rotary(const attn_rotary_problem *, attn_call *);

#endif
