/* Float with AVX2: block sizes and vocabulary. */
#ifndef ATTN_ISA_AVX2_F32_H
#define ATTN_ISA_AVX2_F32_H

#include "isa/avx2.h"

#define KERNEL attn_kernel_avx2_f32
#define REAL_BITS 32
#define PANEL_ROWS 6
#define TILE_VECTORS 2
#define LOADS_COLUMNS 1
#define LOADS_BF16_COLUMNS 1
#define TAKES_TWO_PANELS 1
#define HAS_MANY_ROWS 1
#define PANEL_STEPS 4
#include "vec/avx2_f32.h"

#include "vec/avx2_bf16_columns.h"

#endif
