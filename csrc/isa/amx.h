/* Turns on AMX for integers beside AVX-512 with AVX512-VNNI, for the functions that follow. */
#ifndef ATTN_ISA_AMX_H
#define ATTN_ISA_AMX_H

#include "isa/begin.h"

#if defined(__clang__)
#pragma clang attribute push(                                                          \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,"    \
                          "f16c,amx-tile,amx-int8"))),                                 \
    apply_to = function)
#else
#pragma GCC target(                                                                    \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,amx-tile,amx-int8")
#endif

#endif
