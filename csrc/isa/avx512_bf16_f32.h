/* Bfloat16 with the dot products of AVX512-BF16, summed in float: block sizes and
 * vocabulary. */
#ifndef ATTN_ISA_AVX512_BF16_F32_H
#define ATTN_ISA_AVX512_BF16_F32_H

#include "isa/avx512_bf16.h"

#define KERNEL attn_kernel_avx512_bf16
#define REAL_BITS 32
#define TERMS 2
#define PANEL_ROWS 12
#define TILE_VECTORS 2
#define HAS_MANY_ROWS 1
#include "vec/avx512_bf16.h"

#endif
