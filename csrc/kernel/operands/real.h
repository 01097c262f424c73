/* Operands that are reals, and how rows and weights become them. */
#ifndef ATTN_KERNEL_OPERANDS_REAL_H
#define ATTN_KERNEL_OPERANDS_REAL_H

#include "kernel/operands/convert.h"

typedef real operand;
typedef v_real v_operand;
#define OPERAND_DTYPE REAL_DTYPE

/* How products read rows where they lie: as operands, or as elements that loading converts.
 * Switches over these have no default. */
#if REAL_BITS == 32
typedef enum { AS_OPERANDS, AS_F16, AS_BF16 } storage;
#else
typedef enum { AS_OPERANDS } storage;
#endif

/* What its elements are. */
static INLINE attn_dtype
storage_dtype(const storage kind)
{
    switch (kind) {
#if REAL_BITS == 32
    case AS_F16: return ATTN_F16;
    case AS_BF16: return ATTN_BF16;
#endif
    case AS_OPERANDS: break;
    }
    return REAL_DTYPE;
}

/* Bytes from one of a row's elements to the next. */
static INLINE ptrdiff_t
storage_bytes(const storage kind)
{
    return attn_storage_of(storage_dtype(kind))->bytes;
}

/* Rows of memory that make a row of operands. */
static INLINE ptrdiff_t
storage_rows(const storage kind)
{
    (void)kind;
    return 1;
}

static INLINE v_operand
v_load_operands(const operand *from)
{
    return v_load(from);
}

static INLINE v_operand
v_set1_operand(operand x)
{
    return v_set1(x);
}

static INLINE void
v_transpose_operands(v_operand a[LANES])
{
    v_transpose(a);
}

/* sum + a * b */
static INLINE v_real
v_dot(v_operand a, v_operand b, v_real sum)
{
    return v_fma(a, b, sum);
}

/* LANES operands of a row; `second` is the row behind it, where two rows make one. */
static INLINE v_operand
load_operands(const char *from, const char *second, const storage kind)
{
    (void)second;
    return load_vector(from, storage_dtype(kind));
}

/* One operand of a row. */
static INLINE operand
load_operand(const char *from, const storage kind)
{
    return load_element(from, storage_dtype(kind));
}

/* How products read rows of keys in place, if their columns are adjacent. */
static INLINE storage
key_storage(attn_dtype dtype)
{
    switch (dtype) {
#if REAL_BITS == 32
    case ATTN_F16: return AS_F16;
    case ATTN_BF16: return AS_BF16;
#else
    case ATTN_F16:
    case ATTN_BF16:
#endif
    case ATTN_I8:
    case ATTN_I16:
    case ATTN_F32:
    case ATTN_F64: break;
    }
    return AS_OPERANDS;
}

static INLINE storage
value_storage(attn_dtype dtype)
{
    return key_storage(dtype);
}

/* Elements from .. from + n - 1 of a row, stride bytes apart, as operands. */
static void
stage_row(operand *to, const char *from, ptrdiff_t stride, ptrdiff_t n,
          attn_dtype dtype)
{
    load_row(to, from, stride, n, dtype);
}

/* TERMS rows, the second one NULL if there is none, as one row of operands. */
static void
stage_rows(operand *to, const char *first, const char *second, ptrdiff_t stride,
           ptrdiff_t n, attn_dtype dtype)
{
    (void)second;
    load_row(to, first, stride, n, dtype);
}

/* Makes weights operands, in place: LANES for each of n keys, which are key_step reals apart. */
static INLINE void
store_weights(real *to, const v_real *weights, const int n_keys)
{
    (void)n_keys;
    v_store(to, weights[0]);
}

static INLINE void
pack_weights(real *weights, ptrdiff_t n, ptrdiff_t key_step)
{
    (void)weights, (void)n, (void)key_step;
}

/* Makes n weights of one row, from k on, operands in place; n is a multiple of LANES. */
static INLINE void
pack_row_weights(real *weights, ptrdiff_t k, ptrdiff_t n)
{
    (void)weights, (void)k, (void)n;
}

/* A key's factors of sums over rows, from a lane on. */
static INLINE operand *
factors_of_rows(operand *factors, ptrdiff_t lane)
{
    return factors + lane;
}

/* Stores LANES factors of each of TERMS keys as operands: those of sums over rows `line` operands
 * apart, those of sums over keys at `by_key` unless that is NULL, or the same. */
static INLINE void
store_factors(const v_real x[TERMS], operand *by_row, ptrdiff_t line, operand *by_key)
{
    (void)line, (void)by_key;
    v_store(by_row, x[0]);
}

/* Exchanges the numbers of a column and the factors of rows in a lane, where these are halves of
 * operands: a head's last operand must not have the next head's row. */
static INLINE void
swap_lane(operand *factors, ptrdiff_t n, ptrdiff_t line, ptrdiff_t lane,
          uint16_t *column)
{
    (void)factors, (void)n, (void)line, (void)lane, (void)column;
}

/* The operand with 0 for the terms whose bit is not set. */
static INLINE operand
keep_terms(operand x, uint64_t bits)
{
    return bits & 1 ? x : 0;
}

/* The factor that products of queries with keys still need. */
static real
pending_scale(real scale)
{
    (void)scale;
    return 1;
}

/* Multiplies a query row by the rest of the scale. */
static void
scale_row(operand *row, ptrdiff_t n, real scale)
{
    for (ptrdiff_t k = 0; k < n; k++) {
        row[k] *= scale;
    }
}

#endif
