/* Products of integers with AVX-VNNI, by the same instructions of AVX512-VNNI with vectors of 256
 * bits: they run on each CPU with that. */
#include "support/vnni.h"

#if defined(__x86_64__)
#include "isa/avx512_vnni.h"

#define ATTN_ISA_AVX_VNNI_H /* in place of isa/avx_vnni.h */
#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32
#define attn_integer_kernel_avx_vnni integer_kernel_of_256_bits
#include "isa/avx_vnni_int8.h"

#include "kernel/integer/kernel.h"

#include "isa/end.h"

const attn_tier *
tier_with_vnni(attn_tier *tier)
{
    const attn_tier *avx2 = attn_tier_named("avx2");

    if (avx2 == NULL || attn_tier_named("avx512_vnni") == NULL) {
        return NULL;
    }
    *tier = *avx2;
    tier->integer = &integer_kernel_of_256_bits;
    return tier;
}
#else
const attn_tier *
tier_with_vnni(attn_tier *tier)
{
    (void)tier;
    return NULL;
}
#endif
