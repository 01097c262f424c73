/* Float with NEON: block sizes and vocabulary. */
#ifndef ATTN_ISA_NEON_F32_H
#define ATTN_ISA_NEON_F32_H

#include "isa/neon.h"

#define KERNEL attn_kernel_neon_f32
#define REAL_BITS 32
/* 16 sums keep the pipes busy, and stay in registers; 24 did not with GCC 12. */
#define PANEL_ROWS 4
#define TILE_VECTORS 4
#include "vec/neon_f32.h"

#endif
