/* The only file that asks about the CPU: which instruction sets it and the operating
 * system support, and its floating-point control word. */
#define _GNU_SOURCE /* syscall */
#include "core/cpu.h"

#if defined(_WIN32)
#include <math.h>
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#include <string.h>
#include <xmmintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1,
 * chapters 13 to 15, and volume 2, CPUID and XGETBV. */
enum {
    LEAF1_ECX_FMA = 1 << 12,
    LEAF1_ECX_OSXSAVE = 1 << 27,
    LEAF1_ECX_AVX = 1 << 28,
    LEAF1_ECX_F16C = 1 << 29,
    LEAF7_EBX_AVX2 = 1 << 5,
    LEAF7_EBX_AVX512F = 1 << 16,
    LEAF7_EBX_AVX512DQ = 1 << 17,
    LEAF7_EBX_AVX512BW = 1 << 30,
    LEAF7_ECX_AVX512_VNNI = 1 << 11,
    LEAF7_EDX_AMX_BF16 = 1 << 22,
    LEAF7_EDX_AMX_TILE = 1 << 24,
    LEAF7_EDX_AMX_INT8 = 1 << 25,
    LEAF7_1_EAX_AVX_VNNI = 1 << 4,
    LEAF7_1_EAX_AVX512_BF16 = 1 << 5,
    XCR0_SSE_AVX = 0x06,
    XCR0_AMX = 0x60000,
    XCR0_AVX512 = 0xe6 /* and the mask registers and upper halves of AVX-512 */
};
static const unsigned leaf7_ebx_avx512vl = 1u << 31;

/* What the operating system saves at a context switch. */
static uint64_t
enabled_states(void)
{
    unsigned a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & LEAF1_ECX_OSXSAVE)) {
        return 0;
    }
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t)d << 32 | a;
}

bool
attn_cpu_has_avx2(void)
{
    const unsigned leaf1 = LEAF1_ECX_FMA | LEAF1_ECX_AVX | LEAF1_ECX_F16C;
    unsigned a, b, c, d;

    return (enabled_states() & XCR0_SSE_AVX) == XCR0_SSE_AVX &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & leaf1) == leaf1 &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & LEAF7_EBX_AVX2) != 0;
}

bool
attn_cpu_has_avx_vnni(void)
{
    unsigned a, b, c, d;

    return attn_cpu_has_avx2() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & LEAF7_1_EAX_AVX_VNNI) != 0;
}

bool
attn_cpu_has_avx512(void)
{
    const unsigned leaf7 = LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW |
                           leaf7_ebx_avx512vl;
    unsigned a, b, c, d;

    return attn_cpu_has_avx2() && (enabled_states() & XCR0_AVX512) == XCR0_AVX512 &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & leaf7) == leaf7;
}

bool
attn_cpu_has_avx512_vnni(void)
{
    unsigned a, b, c, d;

    return attn_cpu_has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (c & LEAF7_ECX_AVX512_VNNI) != 0;
}

bool
attn_cpu_has_avx512_bf16(void)
{
    unsigned a, b, c, d;

    return attn_cpu_has_avx512_vnni() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
           (a & LEAF7_1_EAX_AVX512_BF16) != 0;
}

/* Asks Linux for permission to use tiles, as a process must do (Linux kernel
 * documentation, "Using XSTATE features in user space applications"). */
static bool
may_use_tiles(void)
{
#if defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

bool
attn_cpu_has_amx_bf16(void)
{
    const unsigned leaf7 = LEAF7_EDX_AMX_BF16 | LEAF7_EDX_AMX_TILE | LEAF7_EDX_AMX_INT8;
    unsigned a, b, c, d;

    return attn_cpu_has_avx512_bf16() && (enabled_states() & XCR0_AMX) == XCR0_AMX &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & leaf7) == leaf7 &&
           may_use_tiles();
}

static bool
is_of_intel(void)
{
    unsigned a, name[3];

    return __get_cpuid(0, &a, &name[0], &name[2], &name[1]) &&
           memcmp(name, "GenuineIntel", sizeof name) == 0;
}

/* An AMD core starts as many of them per cycle as float multiply-adds. An Intel core
 * starts a quarter as many, half the rate for twice the terms (the limits that `python
 * -m benchmarks` prints first), because its strength is AMX. */
bool
attn_cpu_repays_avx512_bf16(void)
{
    return attn_cpu_has_avx512_bf16() && !is_of_intel();
}

/* Zen 5 is family 26; base and extended family add up from 15 on. */
static bool
is_zen5_or_later(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (a >> 8 & 15) + (a >> 20 & 255) >= 26;
}

/* AVX-512 tells those of AMD apart: Zen 4 is the first one with it, Zen 3 the last one without. */
static bool
is_zen3_or_earlier(void)
{
    return !attn_cpu_has_avx512() && !is_of_intel();
}

static bool
is_zen4_or_later(void)
{
    return attn_cpu_has_avx512() && !is_of_intel();
}

static bool
is_intel_with_avx512(void)
{
    return attn_cpu_has_avx512() && is_of_intel();
}

/* They are faster on Intel's CPUs (up to 1.1 times), on Zen 5 (up to 1.35) and on Zen 4:
 * 1.02 to 1.1 times for packed weights, 0.94 to 1.27 for others, most where they are
 * large. On Zen 3, with AVX2, 1.03 to 1.28 for packed weights. */
bool
attn_cpu_repays_many_rows(void)
{
    return attn_cpu_has_avx2();
}

/* On Zen 5 products of one row with weights are 1.1 to 1.3 times as fast, decoding 1.05
 * to 1.3, and the caches keep the data used in between. On Zen 4 both are slower, 0.85
 * to 0.95 times, when they read memory. On Zen 3, with AVX2, decoding from the third-level cache is
 * 1.0 to 1.1 times as fast, and a model's token 1.1 times; weights that stay in the caches 0.96. On
 * Intel's CPUs this was not measured. */
bool
attn_cpu_repays_reading_once(void)
{
    return is_zen5_or_later() || is_zen3_or_earlier();
}

/* Converting them takes longer than reading: decoding is 1.0 to 1.25 times as fast on
 * Zen 4, where bursts do not read them. On Intel's CPUs this was not measured. */
bool
attn_cpu_repays_reading_halves_once(void)
{
    return is_zen4_or_later();
}

/* Intel's CPUs read rows at full speed in any order, while they have nothing to compute. A touched
 * line is awaited by all instructions behind it, a prefetched one by none. Decoding float32 keys
 * is 1.1 to 1.3 times as fast on a Xeon (family 6, model 207). Its prefetches past the larger
 * caches bring a third to a half of the bytes in the same time. */
bool
attn_cpu_repays_reading_soon(void)
{
    return is_intel_with_avx512();
}

/* On Zen 3, which has no AVX-512, decoding from memory is 1.2 to 1.6 times as fast, from the
 * third-level cache 0.8 to 1.0 times. On Intel's CPUs without AVX-512 this was not measured. */
bool
attn_cpu_repays_reading_far_soon(void)
{
    return is_zen3_or_earlier();
}

/* Zen 4 holds too few misses of the first-level cache at a time to hide those of rows that are
 * read side by side, or of prefetches; its second-level cache prefetches what is read in
 * order, the more so the faster it is asked for. Decoding keys from memory is 1.2 to 1.8 times
 * as fast with one query head for each key head. Zen 5 is faster by reading once. On Intel's
 * CPUs this was not measured. */
bool
attn_cpu_repays_reading_bursts(void)
{
    return is_zen4_or_later() && !is_zen5_or_later();
}

/* Zen 3's own prefetches bring what one or two rows read in order, which others disturb: weights as
 * they lie come from the third-level cache 1.2 to 1.3 times as fast, packed ones from memory 1.07,
 * and a model's token is 1.07 to 1.09 times as fast. Packed ones are two streams then, which makes
 * tokens 1.1 to 1.25 times as fast again. More rows need the others: without them, 0.75 to 0.9. On
 * Intel's CPUs without AVX-512 this was not measured. */
bool
attn_cpu_repays_reading_alone(void)
{
    return is_zen3_or_earlier();
}

/* Two tiles take 10 loads for 24 multiply-adds, one takes 14. On a Xeon (family 6 model 207) products
 * are 1.02 times as fast, 1.07 with keys and values of the third-level cache, and 1.17 while another
 * thread keeps the core's load units busy. On AMD's CPUs this was not measured. */
bool
attn_cpu_repays_pairing_tiles(void)
{
    return is_intel_with_avx512();
}

/* Zen 4 starts one 512-bit multiply-add in a cycle and two loads. CPUs that start two of each
 * have no load left for the vector itself. */
bool
attn_cpu_repays_narrow_tiles(void)
{
    return is_zen4_or_later() && !is_zen5_or_later();
}

uint32_t
attn_fp_control_reset(void)
{
    uint32_t former = _mm_getcsr();
    _mm_setcsr(0x1f80); /* round to nearest, subnormals kept, exceptions masked */
    return former;
}

void
attn_fp_control_restore(uint32_t former)
{
    _mm_setcsr(former);
}

void
attn_cpu_pause(void)
{
    _mm_pause();
}

bool
attn_cpu_has_neon_dotprod(void)
{
    return false;
}

#else

bool
attn_cpu_has_avx2(void)
{
    return false;
}

bool
attn_cpu_has_avx_vnni(void)
{
    return false;
}

bool
attn_cpu_has_avx512(void)
{
    return false;
}

bool
attn_cpu_has_avx512_vnni(void)
{
    return false;
}

bool
attn_cpu_has_avx512_bf16(void)
{
    return false;
}

bool
attn_cpu_has_amx_bf16(void)
{
    return false;
}

bool
attn_cpu_repays_avx512_bf16(void)
{
    return false;
}

bool
attn_cpu_repays_many_rows(void)
{
    return false;
}

bool
attn_cpu_repays_reading_once(void)
{
    return false;
}

bool
attn_cpu_repays_reading_halves_once(void)
{
    return false;
}

bool
attn_cpu_repays_reading_soon(void)
{
    return false;
}

bool
attn_cpu_repays_reading_far_soon(void)
{
    return false;
}

bool
attn_cpu_repays_reading_bursts(void)
{
    return false;
}

bool
attn_cpu_repays_reading_alone(void)
{
    return false;
}

bool
attn_cpu_repays_pairing_tiles(void)
{
    return false;
}

bool
attn_cpu_repays_narrow_tiles(void)
{
    return false;
}

#if defined(__aarch64__)

/* Of Apple's CPUs all have it. */
bool
attn_cpu_has_neon_dotprod(void)
{
#if defined(__linux__)
    enum { HWCAP_DOT_PRODUCTS = 1 << 20 };
    return (getauxval(AT_HWCAP) & HWCAP_DOT_PRODUCTS) != 0;
#elif defined(__APPLE__)
    return true;
#else
    return false;
#endif
}

/* FPCR 0 is round to nearest, subnormals kept, exceptions masked. Its rounding, flush and
 * trap bits all lie in the lower half. */
uint32_t
attn_fp_control_reset(void)
{
    uint64_t former;
    __asm__ volatile("mrs %0, fpcr" : "=r"(former));
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)));
    return (uint32_t)former;
}

void
attn_fp_control_restore(uint32_t former)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)former));
}

void
attn_cpu_pause(void)
{
    __asm__ volatile("yield");
}

#else

bool
attn_cpu_has_neon_dotprod(void)
{
    return false;
}

uint32_t
attn_fp_control_reset(void)
{
    return 0;
}

void
attn_fp_control_restore(uint32_t former)
{
    (void)former;
}

void
attn_cpu_pause(void)
{
}

#endif
#endif

#if defined(_WIN32) && defined(__x86_64__)

/* MinGW's own fma() rounds twice. Here it is the CPU's; CPUs without have no tier. */
__attribute__((target("fma"))) double
fma(double x, double y, double z)
{
    return __builtin_fma(x, y, z);
}

__attribute__((target("fma"))) float
fmaf(float x, float y, float z)
{
    return __builtin_fmaf(x, y, z);
}

bool
attn_cpu_has_baseline(void)
{
    return attn_cpu_has_avx2();
}

#else

bool
attn_cpu_has_baseline(void)
{
    return true;
}

#endif
