/* The kernel for bfloat16 with the dot products of AVX512-BF16, summed in float. */
#include "kernel_begin.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(                                                          \
    __attribute__((                                                                    \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c"))),       \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")
#endif

#define KERNEL attn_kernel_avx512_bf16
#define REAL_BITS 32
#define TERMS 2
#define PANEL_ROWS 12
#define TILE_VECTORS 2
#include "vec/avx512_bf16.h"

#include "kernel.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
