/* Whose functions there are, and reals of either size. */
#include "support/functions.h"

#include "core/cpu.h"
#include "core/tiers.h"

#include <pthread.h>
#include <stdbool.h>

extern const functions functions_scalar_f32, functions_scalar_f64;
extern const functions functions_avx2_f32, functions_avx2_f64;
extern const functions functions_avx512_f32, functions_avx512_f64;
extern const functions functions_neon_f32, functions_neon_f64;
extern const pair_functions functions_avx512_bf16;
extern const unit_functions functions_amx_bf16;

static const functions *const all[] = {
    &functions_scalar_f32, &functions_scalar_f64,
#if defined(__x86_64__)
    &functions_avx2_f32,   &functions_avx2_f64,
    &functions_avx512_f32, &functions_avx512_f64,
#elif defined(__aarch64__)
    &functions_neon_f32,   &functions_neon_f64,
#endif
};

#define COUNT(array) (ptrdiff_t)(sizeof(array) / sizeof((array)[0]))

/* Asked once: in a virtual machine, CPUID takes microseconds. */
static bool is_present[COUNT(all)];
static pthread_once_t asked = PTHREAD_ONCE_INIT;

static void
ask_cpu(void)
{
    for (ptrdiff_t k = 0; k < COUNT(all); k++) {
        is_present[k] = attn_tier_named(all[k]->tier) != NULL;
    }
}

const functions *
functions_at(int bits, int i)
{
    pthread_once(&asked, ask_cpu);
    for (ptrdiff_t k = 0; k < COUNT(all); k++) {
        if (all[k]->bits == bits && is_present[k] && i-- == 0) {
            return all[k];
        }
    }
    return NULL;
}

const pair_functions *
pair_functions_here(void)
{
#if defined(__x86_64__)
    return attn_cpu_has_avx512_bf16() ? &functions_avx512_bf16 : NULL;
#else
    return NULL;
#endif
}

const unit_functions *
unit_functions_here(void)
{
#if defined(__x86_64__) && defined(__linux__)
    return attn_cpu_has_amx_bf16() ? &functions_amx_bf16 : NULL;
#else
    return NULL;
#endif
}

/* ---- Reals of either size ----------------------------------------------------------- */

long double
real_at(const reals *x, int bits, ptrdiff_t i)
{
    return bits == 32 ? (long double)x->f32[i] : (long double)x->f64[i];
}

void
set_bits(reals *x, int bits, ptrdiff_t i, uint64_t pattern)
{
    if (bits == 32) {
        x->u32[i] = (uint32_t)pattern;
    } else {
        x->u64[i] = pattern;
    }
}

uint64_t
get_bits(const reals *x, int bits, ptrdiff_t i)
{
    return bits == 32 ? x->u32[i] : x->u64[i];
}
