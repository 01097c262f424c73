/* Float with AVX-512: block sizes and vocabulary. */
#ifndef ATTN_ISA_AVX512_F32_H
#define ATTN_ISA_AVX512_F32_H

#include "isa/avx512.h"

#define KERNEL attn_kernel_avx512_f32
#define REAL_BITS 32
#define PANEL_ROWS 12
#define TILE_VECTORS 2
#define HAS_MANY_ROWS 1
#define LOADS_COLUMNS 1
#define HAS_BYTE_UNIT 1
#include "vec/avx512_f32.h"

#endif
