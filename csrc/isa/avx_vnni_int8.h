/* Products of integers with AVX-VNNI: tiles and vocabularies. */
#ifndef ATTN_ISA_AVX_VNNI_INT8_H
#define ATTN_ISA_AVX_VNNI_INT8_H

#include "isa/avx_vnni.h"

#define INTEGER_KERNEL attn_integer_kernel_avx_vnni
#define INT8_ROWS 4
#define INT8_REALS 2
#define INT8_ONE 6
#define FLOAT_ROWS 1
#define FLOAT_REALS 3
#define FLOAT_ONE 6
#define READY_FIRST 1
#include "vec/avx2_f32.h"

#include "vec/avx_vnni_int8.h"

#endif
