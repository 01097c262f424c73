/* Turns on AVX2, with FMA and F16C, for the functions that follow. */
#ifndef ATTN_ISA_AVX2_H
#define ATTN_ISA_AVX2_H

#include "isa/begin.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))),                 \
                             apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#endif
