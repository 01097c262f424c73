/* Double with AVX2: block sizes and vocabulary. */
#ifndef ATTN_ISA_AVX2_F64_H
#define ATTN_ISA_AVX2_F64_H

#include "isa/avx2.h"

#define KERNEL attn_kernel_avx2_f64
#define REAL_BITS 64
#define PANEL_ROWS 6
#define TILE_VECTORS 2
#define PANEL_STEPS 4
#include "vec/avx2_f64.h"

#endif
