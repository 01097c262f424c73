/* Float with plain C: block sizes and vocabulary. */
#ifndef ATTN_ISA_SCALAR_F32_H
#define ATTN_ISA_SCALAR_F32_H

#include "isa/scalar.h"

#define KERNEL attn_kernel_scalar_f32
#define REAL_BITS 32
#define PANEL_ROWS 4
#define TILE_VECTORS 8
#include "vec/scalar_f32.h"

#endif
