/* Double with AVX-512: block sizes and vocabulary. */
#ifndef ATTN_ISA_AVX512_F64_H
#define ATTN_ISA_AVX512_F64_H

#include "isa/avx512.h"

#define KERNEL attn_kernel_avx512_f64
#define REAL_BITS 64
#define PANEL_ROWS 12
#define TILE_VECTORS 2
#include "vec/avx512_f64.h"

#endif
