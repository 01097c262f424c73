/* Lists of problems whose results have the same bits on every tier, with any number of
 * threads and on any machine: inputs come from integers, and every operation is IEEE
 * 754's. */
#ifndef ATTN_TESTS_GOLDEN_H
#define ATTN_TESTS_GOLDEN_H

#include "core/tiers.h"

typedef struct {
    int n_problems;
    /* Of problem n. */
    const char *(*name)(int n);
    attn_dtype (*dtype)(int n); /* ATTN_BF16 only if every operand is */
    /* The hash of its results; 0 if memory ran out. */
    uint64_t (*run)(int n, const attn_tier *, int n_threads);
    /* The hash of all their hashes, as the test prints it. It changes with the list and
     * with the bit contract (core/limits.h), and with nothing else. */
    uint64_t golden;
    /* Likewise of those in bfloat16, by the dot products of AVX512-BF16; HASH_START if no
     * problem's dtype is that. */
    uint64_t native_golden;
    /* Likewise by the matrix unit of AMX; 0 if no problem's dtype is that. */
    uint64_t unit_golden;
    bool integers; /* they are multiplied by the tier's kernels for integers */
} corpus;

/* Expects these hashes of every tier, with one and with three threads. */
void check_corpus(const corpus *);

#endif
