/* Products of integers, and of attention over bytes, with AVX2: tiles and vocabularies. */
#ifndef ATTN_ISA_AVX2_INT8_H
#define ATTN_ISA_AVX2_INT8_H

#include "isa/avx2.h"

#define INTEGER_KERNEL attn_integer_kernel_avx2
#define BYTE_KERNEL attn_byte_kernel_avx2
#define INT8_ROWS 4
#define INT8_REALS 2
#define INT8_ONE 6
#define FLOAT_ROWS 1
#define FLOAT_REALS 3
#define FLOAT_ONE 6
#define READY_FIRST 1
#define HAS_SPLIT_BYTES 1
#define BYTE_PANEL 4
#define BYTE_VECTORS 2
#define BYTE_ROWS 4
#define BYTE_SUMS 8
#define BYTE_COLUMNS 64
#include "vec/avx2_f32.h"

#include "vec/avx2_int8.h"

#include "vec/avx2_crossed.h"

#include "vec/avx2_shorts.h"

#endif
