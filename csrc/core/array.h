/* Arrays for the core: storage types of elements, addresses and strides.
 *
 * Dimension legend, used in every file: B batch, H query heads, Hk key/value heads, G =
 * H / Hk query heads of a group, Lq queries, Lk keys, D head dimension of queries and
 * keys, Dv head dimension of values. */
#ifndef ATTN_CORE_ARRAY_H
#define ATTN_CORE_ARRAY_H

#include "core/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Switches over these have no default: so compilers name what lacks a case for a new one. */
typedef enum { ATTN_F16, ATTN_BF16, ATTN_F32, ATTN_F64, ATTN_I8, ATTN_I16 } attn_dtype;
enum { ATTN_N_DTYPES = ATTN_I16 + 1 };

/* ATTN_HALF is computed in float32, and converted on load and store; so is ATTN_INTEGER, of
 * keys and values that have a scale for each row. */
typedef enum { ATTN_HALF, ATTN_REAL, ATTN_INTEGER } attn_kind;

/* What a storage type is. */
typedef struct {
    ptrdiff_t bytes; /* of an element */
    attn_kind kind;
    attn_dtype arithmetic; /* what it is computed in */
    ptrdiff_t packed_rows; /* of weights, which lie together where weights are packed */
} attn_storage;

static inline const attn_storage *
attn_storage_of(attn_dtype dtype)
{
    static const attn_storage table[ATTN_N_DTYPES] = {
        [ATTN_F16] = {2, ATTN_HALF, ATTN_F32, 1},
        [ATTN_BF16] = {2, ATTN_HALF, ATTN_F32, 2},
        [ATTN_F32] = {4, ATTN_REAL, ATTN_F32, 1},
        [ATTN_F64] = {8, ATTN_REAL, ATTN_F64, 1},
        [ATTN_I8] = {1, ATTN_INTEGER, ATTN_F32, 1},
        [ATTN_I16] = {2, ATTN_INTEGER, ATTN_F32, 1},
    };
    return &table[dtype];
}

static inline bool
attn_is_half(attn_dtype dtype)
{
    return attn_storage_of(dtype)->kind == ATTN_HALF;
}

/* The axes before the head axis that a problem's arrays have in common. */
typedef struct {
    ptrdiff_t n; /* the product of the shape */
    int n_axes;
    ptrdiff_t shape[ATTN_MAX_AXES];
} attn_batch;

/* An array (batch axes, head, row, column); data is NULL where the caller gave none.
 * Strides are in bytes, 0 along broadcast axes and axes of length <= 1. */
typedef struct {
    char *data;
    attn_dtype dtype;
    ptrdiff_t head_stride;
    ptrdiff_t row_stride;
    ptrdiff_t column_stride;
    ptrdiff_t batch_stride[ATTN_MAX_AXES];
} attn_array;

/* Packed arrays have no batch axes, but one batch after the other along their rows.
 * `starts`, (B + 1,), ascending from 0, has the first row of each and the end; NULL if
 * the arrays are not packed. The first row of a batch: */
static inline ptrdiff_t
attn_packed_start(const void *starts, ptrdiff_t b)
{
    return starts == NULL ? 0 : (ptrdiff_t)((const int64_t *)starts)[b];
}

/* Its number of rows: n if the arrays are not packed. */
static inline ptrdiff_t
attn_packed_length(const int64_t *starts, ptrdiff_t b, ptrdiff_t n)
{
    return starts == NULL ? n : (ptrdiff_t)(starts[b + 1] - starts[b]);
}

/* The last of n > 0 batches that begins at or before a place, where batch 0 does; begin(b)
 * ascends. */
static inline ptrdiff_t
attn_batch_at(ptrdiff_t (*begin)(const void *context, ptrdiff_t b), const void *context,
              ptrdiff_t n, ptrdiff_t place)
{
    ptrdiff_t low = 0, high = n; /* it is in low .. high - 1 */

    while (high - low > 1) {
        ptrdiff_t middle = low + (high - low) / 2;
        *(begin(context, middle) <= place ? &low : &high) = middle;
    }
    return low;
}

/* The address of the first column of a row; NULL without an array. */
static inline char *
attn_address(const attn_array *array, const attn_batch *batch, ptrdiff_t b,
             ptrdiff_t head, ptrdiff_t row)
{
    char *at = array->data;

    if (at == NULL) {
        return NULL;
    }
    for (int axis = batch->n_axes - 1; axis > 0; axis--) {
        at += b % batch->shape[axis] * array->batch_stride[axis];
        b /= batch->shape[axis];
    }
    if (batch->n_axes > 0) {
        at += b * array->batch_stride[0];
    }
    return at + head * array->head_stride + row * array->row_stride;
}

#endif
