/* Products of integers with AVX512-VNNI: tiles and vocabularies. */
#ifndef ATTN_ISA_AVX512_VNNI_INT8_H
#define ATTN_ISA_AVX512_VNNI_INT8_H

#include "isa/avx512_vnni.h"

#define INTEGER_KERNEL attn_integer_kernel_avx512_vnni
#define INT8_ROWS 4
#define INT8_REALS 3
#define INT8_ONE 3
#define FLOAT_ROWS 2
#define FLOAT_REALS 3
#define FLOAT_ONE 3
#include "vec/avx512_f32.h"

#include "vec/avx512_vnni_int8.h"

#endif
