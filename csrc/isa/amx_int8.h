/* Products of integers with AMX-INT8: its vocabularies. */
#ifndef ATTN_ISA_AMX_INT8_H
#define ATTN_ISA_AMX_INT8_H

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

#define INTEGER_UNIT attn_integer_unit_amx
#include "vec/avx512_f32.h"

#include "vec/amx_int8.h"

#endif
