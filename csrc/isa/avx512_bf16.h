/* Turns on AVX-512 with AVX512-BF16, for the functions that follow. */
#ifndef ATTN_ISA_AVX512_BF16_H
#define ATTN_ISA_AVX512_BF16_H

#include "isa/begin.h"

#if defined(__clang__)
#pragma clang attribute push(                                                          \
    __attribute__((                                                                    \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c"))),       \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")
#endif

#endif
