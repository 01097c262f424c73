/* The kernel for products of integers with AMX-INT8, whose tiles are in plain C: it runs on
 * each CPU with AVX512-VNNI. */
#include "support/tiles.h"

#include "core/cpu.h"

#if defined(__x86_64__) && defined(__linux__)
#include "isa/avx512_vnni.h"

#include "support/tiles_in_c.h"

#define INTEGER_KERNEL attn_integer_kernel_of_tiles
#define INT8_ROWS 4
#define INT8_REALS 3
#define INT8_ONE 3
#define FLOAT_ROWS 2
#define FLOAT_REALS 3
#define FLOAT_ONE 3
#include "vec/avx512_f32.h"

#include "vec/amx_int8.h"

#include "kernel/integer/kernel.h"

#include "isa/end.h"

const attn_integer_kernel *
integer_kernel_of_tiles(void)
{
    return attn_cpu_has_avx512_vnni() ? &attn_integer_kernel_of_tiles : NULL;
}
#else
const attn_integer_kernel *
integer_kernel_of_tiles(void)
{
    return NULL;
}
#endif
