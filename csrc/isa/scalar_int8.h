/* Products of integers, and of attention over bytes, with plain C: tiles
 * and vocabularies. */
#ifndef ATTN_ISA_SCALAR_INT8_H
#define ATTN_ISA_SCALAR_INT8_H

#include "isa/scalar.h"

#define INTEGER_KERNEL attn_integer_kernel_scalar
#define BYTE_KERNEL attn_byte_kernel_scalar
#define INT8_ROWS 1
#define INT8_REALS 1
#define INT8_ONE 1
#define FLOAT_ROWS 1
#define FLOAT_REALS 1
#define FLOAT_ONE 1
#define BYTE_PANEL 2
#define BYTE_VECTORS 2
#define BYTE_ROWS 1
#define BYTE_COLUMNS 16
#include "vec/scalar_f32.h"

#include "vec/scalar_int8.h"

#include "vec/scalar_shorts.h"

#endif
