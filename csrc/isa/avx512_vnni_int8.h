/* Products of integers, and of attention over bytes, with AVX512-VNNI: tiles and vocabularies. */
#ifndef ATTN_ISA_AVX512_VNNI_INT8_H
#define ATTN_ISA_AVX512_VNNI_INT8_H

#include "isa/avx512_vnni.h"

#define INTEGER_KERNEL attn_integer_kernel_avx512_vnni
#define BYTE_KERNEL attn_byte_kernel_avx512_vnni
#define INT8_ROWS 4
#define INT8_REALS 3
#define INT8_ONE 3
#define FLOAT_ROWS 2
#define FLOAT_REALS 3
#define FLOAT_ONE 3
#define BYTE_PANEL 8
#define BYTE_VECTORS 2
#define BYTE_ROWS 4
#define BYTE_COLUMNS 64
#define BYTE_DIGITS 1
#include "vec/avx512_f32.h"

#include "vec/avx512_vnni_int8.h"

#include "vec/avx512_vnni_shorts.h"

#include "vec/avx512_vnni_digits.h"

#endif
