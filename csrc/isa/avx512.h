/* Turns on AVX-512 F, BW, DQ and VL, for the functions that follow. */
#ifndef ATTN_ISA_AVX512_H
#define ATTN_ISA_AVX512_H

#include "isa/begin.h"

#if defined(__clang__)
#pragma clang attribute push(                                                          \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))),       \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif

#endif
