/* Operands that are pairs of bfloat16 numbers, and how rows and weights become them. */
#ifndef ATTN_KERNEL_OPERANDS_PAIR_H
#define ATTN_KERNEL_OPERANDS_PAIR_H

#include "core/array.h"
#include "kernel/operands/convert.h"
#include <string.h>

/* The term of the lower dimension or key is in the lower half. Operands are read where
 * 16-bit elements lie, and packed where floats lay. */
typedef uint32_t operand __attribute__((may_alias, aligned(2)));
typedef v_pairs v_operand;
#define OPERAND_DTYPE ATTN_BF16

/* How products read rows where they lie: as pairs along a row, or two rows as one of pairs. */
typedef enum { AS_OPERANDS, AS_TWO_ROWS } storage;

static INLINE ptrdiff_t
storage_bytes(const storage kind)
{
    return kind == AS_TWO_ROWS ? sizeof(uint16_t) : sizeof(operand);
}

static INLINE ptrdiff_t
storage_rows(const storage kind)
{
    return kind == AS_TWO_ROWS ? 2 : 1;
}

static INLINE v_operand
v_load_operands(const operand *from)
{
    return v_load_pairs(from);
}

static INLINE v_operand
v_set1_operand(operand x)
{
    return v_set1_pair(x);
}

static INLINE void
v_transpose_operands(v_operand a[LANES])
{
    v_transpose_pairs(a);
}

/* sum + the two products of each lane */
static INLINE v_real
v_dot(v_operand a, v_operand b, v_real sum)
{
    return v_dot_pairs(a, b, sum);
}

static INLINE v_operand
load_operands(const char *from, const char *second, const storage kind)
{
    if (kind == AS_TWO_ROWS) {
        return v_zip_bf16((const uint16_t *)(const void *)from,
                          (const uint16_t *)(const void *)second);
    }
    return v_load_pairs((const operand *)(const void *)from);
}

static INLINE operand
load_operand(const char *from, const storage kind)
{
    operand x;

    (void)kind;
    memcpy(&x, from, sizeof x);
    return x;
}

static INLINE storage
key_storage(attn_dtype dtype)
{
    (void)dtype;
    return AS_OPERANDS;
}

static INLINE storage
value_storage(attn_dtype dtype)
{
    (void)dtype;
    return AS_TWO_ROWS;
}

/* Floats, of a linear product, are rounded. */
static void
stage_row(operand *to, const char *from, ptrdiff_t stride, ptrdiff_t n,
          attn_dtype dtype)
{
    uint16_t *terms = (uint16_t *)(void *)to;

    if (dtype == ATTN_F32 && stride == sizeof(real)) {
        store_row((char *)to, sizeof *terms, (const real *)(const void *)from, n,
                  ATTN_BF16);
    } else if (dtype == ATTN_BF16 && stride == sizeof *terms) {
        memcpy(terms, from, (size_t)n * sizeof *terms);
    } else {
        for (ptrdiff_t k = 0; k < n; k++) {
            terms[k] = attn_to_bf16(load_element(from + k * stride, dtype));
        }
    }
    if (n % TERMS != 0) {
        terms[n] = 0;
    }
}

static void
stage_rows(operand *to, const char *first, const char *second, ptrdiff_t stride,
           ptrdiff_t n, attn_dtype dtype)
{
    ptrdiff_t k = 0;

    (void)dtype;
    if (second != NULL && stride == sizeof(uint16_t)) {
        for (; k + LANES <= n; k += LANES) {
            v_operand zipped =
                load_operands(first + k * stride, second + k * stride, AS_TWO_ROWS);
            v_store_pairs(to + k, zipped);
        }
    }
    for (; k < n; k++) {
        uint16_t low, high = 0;
        memcpy(&low, first + k * stride, sizeof low);
        if (second != NULL) {
            memcpy(&high, second + k * stride, sizeof high);
        }
        to[k] = low | (operand)high << 16;
    }
}

/* Stores the weights of one key, or of a pair as its operands. */
static INLINE void
store_weights(real *to, const v_real *weights, const int n_keys)
{
    if (n_keys == TERMS) {
        v_store_pairs(to, v_pair(weights[0], weights[1]));
    } else {
        v_store(to, weights[0]);
    }
}

static INLINE void
pack_weights(real *weights, ptrdiff_t n, ptrdiff_t key_step)
{
    operand *to = (operand *)(void *)weights;

    for (ptrdiff_t k = 0; k < n; k += TERMS) {
        const real *line = weights + k * key_step;
        v_store_pairs(to + k / TERMS * key_step,
                      v_pair(v_load(line), v_load(line + key_step)));
    }
}

static INLINE void
pack_row_weights(real *weights, ptrdiff_t k, ptrdiff_t n)
{
    uint16_t *to = (uint16_t *)(void *)weights;

    for (ptrdiff_t end = k + n; k < end; k += LANES) {
        v_store_bf16(to + k, v_load(weights + k));
    }
}

static INLINE operand *
factors_of_rows(operand *factors, ptrdiff_t lane)
{
    return (operand *)(void *)((uint16_t *)(void *)factors + lane);
}

static INLINE void
store_factors(const v_real x[TERMS], operand *by_row, ptrdiff_t line, operand *by_key)
{
    v_store_two_rounded((uint16_t *)(void *)by_row, x[0],
                        (uint16_t *)(void *)(by_row + line), x[1]);
    if (by_key != NULL) {
        v_store_pairs(by_key, v_pair(x[0], x[1]));
    }
}

static INLINE void
swap_lane(operand *factors, ptrdiff_t n, ptrdiff_t line, ptrdiff_t lane,
          uint16_t *column)
{
    for (ptrdiff_t k = 0; k < n; k++) {
        uint16_t *at = (uint16_t *)(void *)(factors + k * line) + lane;
        uint16_t other = *at;
        *at = column[k];
        column[k] = other;
    }
}

static INLINE operand
keep_terms(operand x, uint64_t bits)
{
    operand low = bits & 1 ? 0x0000ffff : 0, high = bits & 2 ? 0xffff0000 : 0;
    return x & (low | high);
}

static real
pending_scale(real scale)
{
    return scale;
}

static void
scale_row(operand *row, ptrdiff_t n, real scale)
{
    (void)row, (void)n, (void)scale;
}

#endif
