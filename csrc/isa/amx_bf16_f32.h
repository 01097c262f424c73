/* Bfloat16 with AMX, summed in float: block sizes and vocabulary. */
#ifndef ATTN_ISA_AMX_BF16_F32_H
#define ATTN_ISA_AMX_BF16_F32_H

#include "isa/amx_bf16.h"

#define KERNEL attn_kernel_amx_bf16
#define REAL_BITS 32
#define TERMS 2
#define PANEL_ROWS 12
#define TILE_VECTORS 2
#include "vec/avx512_bf16.h"

#include "vec/amx_bf16.h"
#include "vec/amx_bf16_square.h"
#include "vec/amx_bf16_strip.h"
#include "vec/amx_bf16_shuffle.h"

#endif
