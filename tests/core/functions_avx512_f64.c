/* The functions for double with AVX-512. */
#include "kernel_begin.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(                                                          \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))),       \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif

#define FUNCTIONS functions_avx512_f64
#define TIER "avx512"
#define REAL_BITS 64
#include "vec/avx512_f64.h"

#include "functions.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
