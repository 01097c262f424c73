/* Double with plain C: block sizes and vocabulary. */
#ifndef ATTN_ISA_SCALAR_F64_H
#define ATTN_ISA_SCALAR_F64_H

#include "isa/scalar.h"

#define KERNEL attn_kernel_scalar_f64
#define REAL_BITS 64
#define PANEL_ROWS 4
#define TILE_VECTORS 8
#include "vec/scalar_f64.h"

#endif
