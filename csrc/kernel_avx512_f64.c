/* The kernel for double with AVX-512. */
#include "kernel_begin.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(                                                          \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))),       \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif

#define KERNEL attn_kernel_avx512_f64
#define REAL_BITS 64
#define PANEL_ROWS 12
#define TILE_VECTORS 2
#include "vec/avx512_f64.h"

#include "kernel.inc.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
