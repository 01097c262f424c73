/* What a kernel_*.c file includes before it turns on an instruction set: system headers,
 * whose functions must not be compiled for it. */
#ifndef ATTN_KERNEL_BEGIN_H
#define ATTN_KERNEL_BEGIN_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "attention.h"
#include "half.h"

#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

#endif
