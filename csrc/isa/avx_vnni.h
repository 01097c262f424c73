/* Turns on AVX2, with FMA, F16C and AVX-VNNI, for the functions that follow. */
#ifndef ATTN_ISA_AVX_VNNI_H
#define ATTN_ISA_AVX_VNNI_H

#include "isa/begin.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))),         \
                             apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avxvnni")
#endif

#endif
