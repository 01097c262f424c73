/* The functions for double with AVX2. */
#include "kernel_begin.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))),                 \
                             apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define FUNCTIONS functions_avx2_f64
#define TIER "avx2"
#define REAL_BITS 64
#include "vec/avx2_f64.h"

#include "functions.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
