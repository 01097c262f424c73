/* Turns on AMX for bfloat16 beside AVX-512 with AVX512-BF16, for the functions that follow. */
#ifndef ATTN_ISA_AMX_BF16_H
#define ATTN_ISA_AMX_BF16_H

#include "isa/begin.h"

#if defined(__clang__)
#pragma clang attribute push(                                                          \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,"    \
                          "f16c,amx-tile,amx-bf16"))),                                 \
    apply_to = function)
#else
#pragma GCC target(                                                                    \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,amx-tile,amx-bf16")
#endif

#endif
