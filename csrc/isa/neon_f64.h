/* Double with NEON: block sizes and vocabulary. */
#ifndef ATTN_ISA_NEON_F64_H
#define ATTN_ISA_NEON_F64_H

#include "isa/neon.h"

#define KERNEL attn_kernel_neon_f64
#define REAL_BITS 64
/* 16 sums keep the pipes busy, and stay in registers; 24 did not with GCC 12. */
#define PANEL_ROWS 4
#define TILE_VECTORS 4
#include "vec/neon_f64.h"

#endif
