/* The kernel for bfloat16 with the dot products of AVX512-BF16, summed in float. */
#if defined(__x86_64__)
#include "isa/avx512_bf16_f32.h"

#include "kernel/kernel.h"

#include "isa/end.h"
#endif
