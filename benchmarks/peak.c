/* The machine's limits, measured: fused multiply-adds per second, and bytes read per
 * second. Compiled and called by machine.py; it knows nothing of attention. */

#define _GNU_SOURCE /* syscall */

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define HAS_X86 1
#else
#define HAS_X86 0
#endif
#if HAS_X86 && defined(__linux__) &&                                                   \
    (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_AMX 1
#else
#define HAS_AMX 0
#endif

/* Of multiply-adds that wait for one another: a latency of four cycles with two units
 * needs eight, and AVX2 has sixteen registers. Unrolled, each is a register. */
#define N_CHAINS 12
#define EACH_CHAIN(i) _Pragma("GCC unroll 12") for (int i = 0; i < N_CHAINS; i++)
#define N_STEPS 2000 /* between two looks at the clock: some microseconds */
#define INLINE static inline __attribute__((always_inline))

/* Not constants: the compiler must not compute the loops. */
static volatile double seed_factor = 0.999, seed_term = 0.001, sink;

typedef float f32x4 __attribute__((vector_size(16)));
typedef double f64x2 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef double f64x4 __attribute__((vector_size(32)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef double f64x8 __attribute__((vector_size(64)));
typedef int64_t line __attribute__((vector_size(64), may_alias));

/* ---- Loops of multiply-adds ----------------------------------------------------------- */

#if HAS_X86
#define FMA_NAME avx512_f32
#define FMA_TARGET __attribute__((target("avx512f")))
#define FMA_REAL float
#define FMA_VECTOR f32x16
#include "fma.inc.h"

#define FMA_NAME avx512_f64
#define FMA_TARGET __attribute__((target("avx512f")))
#define FMA_REAL double
#define FMA_VECTOR f64x8
#include "fma.inc.h"

#define FMA_NAME avx2_f32
#define FMA_TARGET __attribute__((target("avx2,fma")))
#define FMA_REAL float
#define FMA_VECTOR f32x8
#include "fma.inc.h"

#define FMA_NAME avx2_f64
#define FMA_TARGET __attribute__((target("avx2,fma")))
#define FMA_REAL double
#define FMA_VECTOR f64x4
#include "fma.inc.h"

#define FMA_NAME scalar_f32
#define FMA_TARGET __attribute__((target("fma")))
#define FMA_REAL float
#define FMA_VECTOR float
#include "fma.inc.h"

#define FMA_NAME scalar_f64
#define FMA_TARGET __attribute__((target("fma")))
#define FMA_REAL double
#define FMA_VECTOR double
#include "fma.inc.h"

/* Each lane of a dot product is two multiplications and two additions. */
__attribute__((target("avx512f,avx512bf16"))) static double
avx512_bf16(ptrdiff_t n_steps)
{
    const __m512 one = _mm512_set1_ps((float)seed_factor);
    const __m512bh factor = _mm512_cvtne2ps_pbh(one, one);
    __m512 x[N_CHAINS], sum = one;

    EACH_CHAIN(i)
    {
        x[i] = sum += one;
    }
    for (ptrdiff_t step = 0; step < n_steps; step++) {
        EACH_CHAIN(i)
        {
            x[i] = _mm512_dpbf16_ps(x[i], factor, factor);
        }
    }
    EACH_CHAIN(i)
    {
        sum += x[i];
    }
    sink = sum[0];
    return (double)n_steps * 2 * N_CHAINS * 32;
}

#if HAS_AMX
/* Six tiles of sums, each of 16 x 16 dot products of 32 terms. */
__attribute__((target("amx-tile,amx-bf16"))) static double
amx_bf16(ptrdiff_t n_steps)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};

    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = 16;
    }
    /* Compilers may not know that all of it is read. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (ptrdiff_t i = 0; i < n_steps; i++) {
        _tile_dpbf16ps(0, 6, 7);
        _tile_dpbf16ps(1, 6, 7);
        _tile_dpbf16ps(2, 6, 7);
        _tile_dpbf16ps(3, 6, 7);
        _tile_dpbf16ps(4, 6, 7);
        _tile_dpbf16ps(5, 6, 7);
    }
    _tile_release();
    return (double)n_steps * 2 * 6 * 16 * 16 * 32;
}
#endif

#elif defined(__aarch64__)
#define FMA_NAME neon_f32
#define FMA_TARGET
#define FMA_REAL float
#define FMA_VECTOR f32x4
#include "fma.inc.h"

#define FMA_NAME neon_f64
#define FMA_TARGET
#define FMA_REAL double
#define FMA_VECTOR f64x2
#include "fma.inc.h"

#define FMA_NAME scalar_f32
#define FMA_TARGET
#define FMA_REAL float
#define FMA_VECTOR float
#include "fma.inc.h"

#define FMA_NAME scalar_f64
#define FMA_TARGET
#define FMA_REAL double
#define FMA_VECTOR double
#include "fma.inc.h"
#endif

/* ---- Which of them this CPU has ------------------------------------------------------- */

#if HAS_X86
static int
has_avx512(void)
{
    return __builtin_cpu_supports("avx512f");
}

static int
has_avx512bf16(void)
{
    return __builtin_cpu_supports("avx512bf16");
}

#if HAS_AMX
/* Tiles have to be asked for. */
static int
has_amx(void)
{
    enum {
        BF16 = 1 << 22,
        TILE = 1 << 24,
        ARCH_REQ_XCOMP_PERM = 0x1023,
        TILE_DATA = 18
    };
    unsigned a, b, c, d = 0;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & BF16) && (d & TILE) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}
#endif

static int
has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int
has_fma(void)
{
    return __builtin_cpu_supports("fma");
}
#elif defined(__aarch64__)
static int
always(void)
{
    return 1;
}
#endif

typedef struct {
    const char *name;
    double (*run)(ptrdiff_t n_steps); /* returns how many operations it did */
    int (*present)(void);
} fma_loop;

static const fma_loop loops[] = {
#if HAS_X86
    {"avx512_f32", avx512_f32, has_avx512},
    {"avx512_f64", avx512_f64, has_avx512},
    {"avx512_bf16", avx512_bf16, has_avx512bf16},
#if HAS_AMX
    {"amx_bf16", amx_bf16, has_amx},
#endif
    {"avx2_f32", avx2_f32, has_avx2},
    {"avx2_f64", avx2_f64, has_avx2},
    {"scalar_f32", scalar_f32, has_fma},
    {"scalar_f64", scalar_f64, has_fma},
#elif defined(__aarch64__)
    {"neon_f32", neon_f32, always},
    {"neon_f64", neon_f64, always},
    {"scalar_f32", scalar_f32, always},
    {"scalar_f64", scalar_f64, always},
#endif
    {NULL, NULL, NULL},
};

/* The clock of all that is measured here. */
double
seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static const fma_loop *
find_loop(const char *name)
{
    const fma_loop *loop = loops;

    while (loop->name != NULL && strcmp(loop->name, name) != 0) {
        loop++;
    }
    return loop->name != NULL && loop->present() ? loop : NULL;
}

/* Whether this CPU can run the named loop. */
int
has_fma_loop(const char *name)
{
    return find_loop(name) != NULL;
}

/* Operations per second of the named loop in each of n_windows periods of so many
 * seconds, the first of which begins at `start`. Until then it runs for nothing. A period
 * through which the thread slept has 0, and one that it came to late what it did in it. */
void
fma_rates(const char *name, double start, double seconds, ptrdiff_t n_windows,
          double *rates /* (n_windows) */)
{
    const fma_loop *loop = find_loop(name);

    while (seconds_now() < start) {
        loop->run(N_STEPS);
    }
    for (ptrdiff_t i = 0; i < n_windows; i++) {
        const double begin = start + (double)i * seconds;
        double count = 0, now = seconds_now();

        while (now < begin + seconds) {
            count += loop->run(N_STEPS);
            now = seconds_now();
        }
        rates[i] = count / (now - begin);
    }
}

/* ---- Reading -------------------------------------------------------------------------- */

/* Reads n lines as so many parallel streams, asking for each line `ahead` lines early. */
INLINE int64_t
read_streams(const line *from, ptrdiff_t n, ptrdiff_t n_streams, ptrdiff_t ahead)
{
    ptrdiff_t part = n / n_streams;
    line sum[8] = {{0}};
    int64_t all = 0;

    for (ptrdiff_t i = 0; i < part; i++) {
        for (ptrdiff_t s = 0; s < n_streams; s++) {
            const line *p = from + s * part + i;
            if (ahead > 0) {
                __builtin_prefetch(p + ahead);
            }
            sum[s] ^= *p;
        }
    }
    for (ptrdiff_t s = 0; s < n_streams; s++) {
        for (int i = 0; i < 8; i++) {
            all ^= sum[s][i];
        }
    }
    return all;
}

/* The ways to read; which one is fastest depends on the machine and the size. */
INLINE int64_t
read_once(const line *from, ptrdiff_t n, int way)
{
    switch (way) {
    case 0: return read_streams(from, n, 1, 0);
    case 1: return read_streams(from, n, 1, 32);
    case 2: return read_streams(from, n, 1, 128);
    case 3: return read_streams(from, n, 4, 0);
    case 4: return read_streams(from, n, 4, 16);
    default: return read_streams(from, n, 8, 8);
    }
}

static int64_t
read_plain(const line *from, ptrdiff_t n, int way)
{
    return read_once(from, n, way);
}

#if HAS_X86
__attribute__((target("avx512f"))) static int64_t
read_avx512(const line *from, ptrdiff_t n, int way)
{
    return read_once(from, n, way);
}

__attribute__((target("avx2"))) static int64_t
read_avx2(const line *from, ptrdiff_t n, int way)
{
    return read_once(from, n, way);
}
#endif

typedef int64_t (*reader)(const line *from, ptrdiff_t n, int way);

static reader
best_reader(void)
{
#if HAS_X86
    if (has_avx512()) {
        return read_avx512;
    }
    if (has_avx2()) {
        return read_avx2;
    }
#endif
    return read_plain;
}

/* How many ways of reading there are. */
int
n_read_ways(void)
{
    return 6;
}

/* Bytes per second of reading two arrays of n_bytes each, again and again: one pass at
 * least, then until the time is over. */
double
read_rate(const char *first, const char *second, ptrdiff_t n_bytes, int way,
          double seconds)
{
    const reader read = best_reader();
    const ptrdiff_t n = (n_bytes - 63) / 64;
    const line *arrays[2];
    double begin, elapsed, count = 0;

    arrays[0] = (const line *)(((uintptr_t)first + 63) / 64 * 64);
    arrays[1] = (const line *)(((uintptr_t)second + 63) / 64 * 64);
    if (n <= 0) {
        return 0;
    }
    begin = seconds_now();
    do {
        sink = (double)(read(arrays[0], n, way) ^ read(arrays[1], n, way));
        count += 2.0 * 64 * (double)n;
        elapsed = seconds_now() - begin;
    } while (elapsed < seconds);
    return count / elapsed;
}
