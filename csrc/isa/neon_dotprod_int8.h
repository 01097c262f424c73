/* Products of integers with the dot products of NEON: tiles and vocabularies. */
#ifndef ATTN_ISA_NEON_DOTPROD_INT8_H
#define ATTN_ISA_NEON_DOTPROD_INT8_H

#include "isa/neon_dotprod.h"

#define INTEGER_KERNEL attn_integer_kernel_neon_dotprod
#define INT8_ROWS 4
#define INT8_REALS 3
#define INT8_ONE 12
#define FLOAT_ROWS 2
#define FLOAT_REALS 3
#define FLOAT_ONE 6
#include "vec/neon_f32.h"

#include "vec/neon_dotprod_int8.h"

#endif
