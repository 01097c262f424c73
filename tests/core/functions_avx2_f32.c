/* The functions for float with AVX2. */
#include "kernel_begin.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))),                 \
                             apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define FUNCTIONS functions_avx2_f32
#define TIER "avx2"
#define REAL_BITS 32
#include "vec/avx2_f32.h"

#include "functions.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
