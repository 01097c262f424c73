/* What comes before an instruction set is turned on: system headers, whose functions must not
 * be compiled for it. */
#ifndef ATTN_ISA_BEGIN_H
#define ATTN_ISA_BEGIN_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

/* One copy of a function, not some for what callers have in common: it is not worth more. */
#if defined(__clang__)
#define ONE_COPY __attribute__((noinline))
#else
#define ONE_COPY __attribute__((noinline, noclone))
#endif

/* Begins at a cache line: how fast loops are fetched depends on where they lie in one, and must not
 * depend on the functions before them. */
#define ALIGNED __attribute__((aligned(64)))

/* Before a loop over what is to be in registers, whose length the compiler knows. */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 32")
#endif

/* In a loop over what whole vectors leave, or over what is rare: compilers would make vectors of
 * it, with hundreds of instructions around them. */
#define ONE_BY_ONE __asm__ volatile("")

#include "core/half.h"
#include "core/paths.h"
#include "core/tiers.h"

#endif
