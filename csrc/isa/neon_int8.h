/* Products of integers, and of attention over bytes, with NEON: tiles and vocabularies. */
#ifndef ATTN_ISA_NEON_INT8_H
#define ATTN_ISA_NEON_INT8_H

#include "isa/neon.h"

#define INTEGER_KERNEL attn_integer_kernel_neon
#define BYTE_KERNEL attn_byte_kernel_neon
#define INT8_ROWS 2
#define INT8_REALS 3
#define INT8_ONE 6
#define FLOAT_ROWS 1
#define FLOAT_REALS 3
#define FLOAT_ONE 3
#define BYTE_PANEL 2
#define BYTE_VECTORS 4
#define BYTE_ROWS 2
#define BYTE_COLUMNS 64
#include "vec/neon_f32.h"

#include "vec/neon_int8.h"

#include "vec/neon_shorts.h"

#endif
