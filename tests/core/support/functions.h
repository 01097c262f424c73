/* The vocabulary of csrc/vec/ and what is static in csrc/kernel/, as a kernel of one
 * instruction set and dtype compiles them, for tests to call. Arrays are of that dtype
 * and a whole number of vectors long. */
#ifndef ATTN_TESTS_FUNCTIONS_H
#define ATTN_TESTS_FUNCTIONS_H

#include "core/array.h"

#include <stddef.h>
#include <stdint.h>

typedef void unary(const void *x, void *to, ptrdiff_t n);
typedef void binary(const void *x, const void *y, void *to, ptrdiff_t n);
typedef void ternary(const void *x, const void *y, const void *z, void *to,
                     ptrdiff_t n);

typedef struct {
    const char *tier;
    int bits; /* of a real: 32 or 64 */
    int lanes;

    unary *exp, *tanh, *log_lanes, *round, *exponent, *quiet_nan_or;
    void (*log)(const double *x, double *to, ptrdiff_t n);
    binary *add, *sub, *mul, *div, *max, *scale2;
    ternary *fma, *fms;

    /* Of one vector, or of LANES of them; bit i of a mask is lane i. */
    uint64_t (*mask)(uint64_t bits); /* to a mask and back */
    uint64_t (*less)(const void *x, const void *y);
    uint64_t (*is_nan)(const void *x);
    void (*select)(uint64_t bits, const void *yes, const void *no, void *to);
    void (*reduce_max)(const void *x, void *to);
    void (*reduce_add)(const void *x, void *to); /* 32 bits only */
    void (*transpose)(void *square);
    void (*load_columns)(void *square); /* the same; or NULL, as the next: */
    void (*load_bf16_columns)(const uint16_t *square, void *to);
    void (*load_bf16_pairs)(const uint16_t *pairs, void *to);

    void (*load_f16)(const uint16_t *from, void *to, ptrdiff_t n);
    void (*load_bf16)(const uint16_t *from, void *to, ptrdiff_t n);
    void (*store_f16)(const void *from, uint16_t *to, ptrdiff_t n); /* 32 bits only */
    void (*store_bf16)(const void *from, uint16_t *to, ptrdiff_t n);

    /* Rows of kernel/operands/convert.h, of any length. */
    void (*load_row)(void *to, const char *from, ptrdiff_t stride, ptrdiff_t n,
                     attn_dtype);
    void (*store_row)(char *to, ptrdiff_t stride, const void *from, ptrdiff_t n,
                      attn_dtype);
} functions;

/* Those of this CPU's tiers; number i for a real of 32 or 64 bits, scalar first. NULL
 * past the last one. */
const functions *functions_at(int bits, int i);

/* Likewise what vec/avx512_bf16.h adds to it: pairs of bfloat16 numbers, the lower half of
 * 32 bits first. Pairs may lie at any address. */
typedef struct {
    int lanes;
    void (*copy)(const void *pairs, void *to, ptrdiff_t n);
    void (*set1)(uint32_t pair, void *to); /* to one vector */
    void (*dot)(const void *a, const void *b, const float *sum, float *to, ptrdiff_t n);
    void (*pair)(const float *low, const float *high, void *to, ptrdiff_t n);
    void (*round)(const float *from, uint16_t *to, ptrdiff_t n);
    void (*zip)(const uint16_t *low, const uint16_t *high, void *to, ptrdiff_t n);
    void (*transpose)(uint32_t *square); /* (lanes, lanes) */
} pair_functions;

/* NULL if this CPU has none. */
const pair_functions *pair_functions_here(void);

/* Likewise what vec/amx_bf16_square.h and amx_bf16_shuffle.h add. Products are of 32 rows of a,
 * n_steps times 32 numbers each, and as many rows of b in pairs, with 16 times `columns` pairs. */
typedef struct {
    void (*multiply)(const uint16_t *a, const uint16_t *b, float *sums, int n_steps,
                     int columns, bool resume);
    /* Of 16 rows with 4 columns. */
    void (*multiply_line)(const uint16_t *a, const uint16_t *b, float *sums,
                          int n_steps);
    void (*transpose_four)(const float *from, float *to);
    void (*zip)(const uint16_t *low, const uint16_t *up, uint32_t *zipped,
                float *unzipped);
    int (*zip_element)(int i);
    /* e^(scale * score - max) of 16 scores, and the same as operands of products */
    void (*weigh)(const float *scores, float scale, float max, float *weights,
                  float *operands);
} unit_functions;

/* NULL if this CPU has none. */
const unit_functions *unit_functions_here(void);

enum { PIECE = 4096 }; /* reals that a test takes at once */

typedef union {
    float f32[PIECE];
    double f64[PIECE];
    uint32_t u32[PIECE];
    uint64_t u64[PIECE];
} reals;

/* Element i of reals of 32 or 64 bits. */
long double real_at(const reals *, int bits, ptrdiff_t i);
void set_bits(reals *, int bits, ptrdiff_t i, uint64_t pattern);
uint64_t get_bits(const reals *, int bits, ptrdiff_t i);

#endif
