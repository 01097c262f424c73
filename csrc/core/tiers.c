/* The table of tiers, best first. */
#include "core/tiers.h"

#include "core/cpu.h"

#include <string.h>

extern const attn_kernel attn_kernel_scalar_f32, attn_kernel_scalar_f64;
extern const attn_kernel attn_kernel_avx2_f32, attn_kernel_avx2_f64;
extern const attn_kernel attn_kernel_avx512_f32, attn_kernel_avx512_f64;
extern const attn_kernel attn_kernel_avx512_bf16, attn_kernel_amx_bf16;
extern const attn_kernel attn_kernel_neon_f32, attn_kernel_neon_f64;

extern const attn_integer_kernel attn_integer_kernel_scalar;
extern const attn_integer_kernel attn_integer_kernel_avx2;
extern const attn_integer_kernel attn_integer_kernel_avx_vnni;
extern const attn_integer_kernel attn_integer_kernel_avx512;
extern const attn_integer_kernel attn_integer_kernel_avx512_vnni;
extern const attn_integer_kernel attn_integer_kernel_neon;
extern const attn_integer_kernel attn_integer_kernel_neon_dotprod;

extern void attn_integer_unit_amx(const void *product, ptrdiff_t n, int form);

extern const attn_byte_kernel attn_byte_kernel_scalar, attn_byte_kernel_avx2;
extern const attn_byte_kernel attn_byte_kernel_avx512_vnni, attn_byte_kernel_neon;
extern const attn_byte_unit attn_byte_unit_amx;

/* All CPUs with AVX512-BF16 have AVX512-VNNI, and those with AMX for bfloat16 AMX-INT8. */
static const attn_tier tiers[] = {
#if defined(__x86_64__) && defined(__linux__)
    {"amx_bf16", attn_cpu_has_amx_bf16, &attn_kernel_avx512_f32,
     &attn_kernel_avx512_f64, &attn_kernel_amx_bf16, &attn_integer_kernel_avx512_vnni,
     attn_integer_unit_amx, &attn_byte_kernel_avx512_vnni, &attn_byte_unit_amx},
#endif
#if defined(__x86_64__)
    {"avx512_bf16", attn_cpu_has_avx512_bf16, &attn_kernel_avx512_f32,
     &attn_kernel_avx512_f64, &attn_kernel_avx512_bf16,
     &attn_integer_kernel_avx512_vnni, NULL, &attn_byte_kernel_avx512_vnni, NULL},
    {"avx512_vnni", attn_cpu_has_avx512_vnni, &attn_kernel_avx512_f32,
     &attn_kernel_avx512_f64, NULL, &attn_integer_kernel_avx512_vnni, NULL,
     &attn_byte_kernel_avx512_vnni, NULL},
    {"avx512", attn_cpu_has_avx512, &attn_kernel_avx512_f32, &attn_kernel_avx512_f64,
     NULL, &attn_integer_kernel_avx512, NULL, &attn_byte_kernel_avx2, NULL},
    {"avx_vnni", attn_cpu_has_avx_vnni, &attn_kernel_avx2_f32, &attn_kernel_avx2_f64,
     NULL, &attn_integer_kernel_avx_vnni, NULL, &attn_byte_kernel_avx2, NULL},
    {"avx2", attn_cpu_has_avx2, &attn_kernel_avx2_f32, &attn_kernel_avx2_f64, NULL,
     &attn_integer_kernel_avx2, NULL, &attn_byte_kernel_avx2, NULL},
#elif defined(__aarch64__)
    {"neon_dotprod", attn_cpu_has_neon_dotprod, &attn_kernel_neon_f32,
     &attn_kernel_neon_f64, NULL, &attn_integer_kernel_neon_dotprod, NULL,
     &attn_byte_kernel_neon, NULL},
    {"neon", attn_cpu_has_baseline, &attn_kernel_neon_f32, &attn_kernel_neon_f64, NULL,
     &attn_integer_kernel_neon, NULL, &attn_byte_kernel_neon, NULL},
#endif
    {"scalar", attn_cpu_has_baseline, &attn_kernel_scalar_f32, &attn_kernel_scalar_f64,
     NULL, &attn_integer_kernel_scalar, NULL, &attn_byte_kernel_scalar, NULL},
};

const attn_tier *
attn_tier_at(int index)
{
    for (size_t i = 0; i < sizeof tiers / sizeof tiers[0]; i++) {
        if (tiers[i].supported() && index-- == 0) {
            return &tiers[i];
        }
    }
    return NULL;
}

const attn_tier *
attn_tier_named(const char *name)
{
    const attn_tier *tier;

    for (int i = 0; (tier = attn_tier_at(i)) != NULL; i++) {
        if (strcmp(tier->name, name) == 0) {
            return tier;
        }
    }
    return NULL;
}

static bool
is_portable(const attn_tier *tier)
{
    return tier->bf16 == NULL;
}

const attn_attention_kernel *
attn_attention_kernel_for(const attn_problem *p, const attn_tier *tier)
{
    bool all_bf16 = p->query.dtype == ATTN_BF16 && p->key.dtype == ATTN_BF16 &&
                    p->value.dtype == ATTN_BF16;

    return &attn_kernel_for(tier, p->arithmetic, all_bf16)->attention;
}

const attn_tier *
attn_portable_tier(const attn_tier *tier)
{
    const attn_tier *other = tier;

    for (int i = 0; !is_portable(other); i++) {
        const attn_tier *next = attn_tier_at(i);
        other = next->f32 == tier->f32 ? next : other;
    }
    return other;
}

const attn_tier *
attn_default_tier(void)
{
    const attn_tier *best = attn_tier_at(0);
    if (best == NULL) {
        return NULL;
    }
    bool repays =
        best->bf16 == NULL || attn_cpu_has_amx_bf16() || attn_cpu_repays_avx512_bf16();

    return repays ? best : attn_portable_tier(best);
}

const attn_kernel *
attn_kernel_for(const attn_tier *tier, attn_dtype arithmetic, bool all_bf16)
{
    if (all_bf16 && tier->bf16 != NULL) {
        return tier->bf16;
    }
    return arithmetic == ATTN_F32 ? tier->f32 : tier->f64;
}
