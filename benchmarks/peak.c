/* The machine's limits, measured: multiply-adds per second, and bytes read per second.
 *
 * machine.py compiles this once for each loop, with flags for its instruction set, and
 * with REAL, BYTES (of a vector) and CPU (its name for __builtin_cpu_supports). */

#define _GNU_SOURCE /* syscall */

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Of multiply-adds that wait for one another: a latency of four cycles with two units
 * needs eight, and AVX2 has sixteen registers. Unrolled, each is a register. */
#define N_CHAINS 12
#define EACH_CHAIN(i) _Pragma("GCC unroll 12") for (int i = 0; i < N_CHAINS; i++)
#define N_STEPS 2000 /* between two looks at the clock: some microseconds */

/* Not constants: the compiler must not compute the loops. */
static volatile double seed_factor = 0.999, seed_term = 0.001, sink;

/* ---- The loop: operations(n_steps) returns how many it did ---------------------------- */

#if defined(TILES)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Tiles have to be asked for. */
int
is_present(void)
{
    enum {
#if defined(INTEGERS)
        PRODUCTS = 1 << 25,
#else
        PRODUCTS = 1 << 22, /* of bfloat16 */
#endif
        TILE = 1 << 24,
        ARCH_REQ_XCOMP_PERM = 0x1023,
        TILE_DATA = 18
    };
    unsigned a, b, c, d = 0;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & PRODUCTS) && (d & TILE) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}

#if defined(INTEGERS)
#define MULTIPLY_TILES _tile_dpbssd
#define TILE_TERMS 64
#else
#define MULTIPLY_TILES _tile_dpbf16ps
#define TILE_TERMS 32
#endif

/* Six tiles of sums, each of 16 x 16 dot products of TILE_TERMS terms. */
static double
operations(ptrdiff_t n_steps)
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
    _tile_loadconfig(&config); /* all tiles are zero then */
    for (ptrdiff_t i = 0; i < n_steps; i++) {
        MULTIPLY_TILES(0, 6, 7);
        MULTIPLY_TILES(1, 6, 7);
        MULTIPLY_TILES(2, 6, 7);
        MULTIPLY_TILES(3, 6, 7);
        MULTIPLY_TILES(4, 6, 7);
        MULTIPLY_TILES(5, 6, 7);
    }
    _tile_release();
    return (double)n_steps * 2 * 6 * 16 * 16 * TILE_TERMS;
}

#else
int
is_present(void)
{
#if defined(CPU)
    return __builtin_cpu_supports("fma") && __builtin_cpu_supports(CPU);
#else
    return 1;
#endif
}

#if defined(INTEGERS)
#include <immintrin.h>
#define REAL int
typedef __m512i vector;

/* Each lane of a dot product is four multiplications and four additions. */
static const ptrdiff_t per_vector = 2 * 4 * 16;

static inline vector
multiply_add(vector x, vector factor, vector term)
{
    (void)term;
    return _mm512_dpbusd_epi32(x, factor, factor);
}
#elif defined(__AVX512BF16__)
#include <immintrin.h>
#define REAL float
typedef __m512 vector;

/* Each lane of a dot product is two multiplications and two additions. */
static const ptrdiff_t per_vector = 2 * 2 * 16;

static inline vector
multiply_add(vector x, vector factor, vector term)
{
    (void)term;
    return _mm512_dpbf16_ps(x, (__m512bh)factor, (__m512bh)factor);
}
#else
#if defined(BYTES)
typedef REAL vector __attribute__((vector_size(BYTES)));
#else
typedef REAL vector;
#endif

static const ptrdiff_t per_vector = 2 * sizeof(vector) / sizeof(REAL);

/* Compilers contract it by themselves. */
static inline vector
multiply_add(vector x, vector factor, vector term)
{
    return x * factor + term;
}
#endif

/* The chains start apart, or a compiler would make them one. */
static double
operations(ptrdiff_t n_steps)
{
    const vector factor = (vector){0} + (REAL)seed_factor;
    const vector term = (vector){0} + (REAL)seed_term;
    vector x[N_CHAINS], sum = term;

    EACH_CHAIN(i)
    {
        x[i] = sum += term;
    }
    for (ptrdiff_t step = 0; step < n_steps; step++) {
        EACH_CHAIN(i)
        {
            x[i] = multiply_add(x[i], factor, term);
        }
    }
    EACH_CHAIN(i)
    {
        sum += x[i];
    }
    sink = ((const REAL *)&sum)[0];
    return (double)n_steps * N_CHAINS * (double)per_vector;
}
#endif

static double
seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Operations per second in each of n_windows periods of so many seconds, the first of
 * which begins at `start`. Until then the loop runs for nothing. A period through which
 * the thread slept has 0, and one that it came to late what it did in it. */
void
fma_rates(double start, double seconds, ptrdiff_t n_windows,
          double *rates /* (n_windows) */)
{
    while (seconds_now() < start) {
        operations(N_STEPS);
    }
    for (ptrdiff_t i = 0; i < n_windows; i++) {
        const double begin = start + (double)i * seconds;
        double count = 0, now = seconds_now();

        while (now < begin + seconds) {
            count += operations(N_STEPS);
            now = seconds_now();
        }
        rates[i] = count / (now - begin);
    }
}

/* ---- Reading -------------------------------------------------------------------------- */

typedef int64_t line __attribute__((vector_size(64), may_alias));

/* Reads n lines as so many parallel streams, asking for each line `ahead` lines early. */
static inline __attribute__((always_inline)) int64_t
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
static int64_t
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
    const ptrdiff_t n = (n_bytes - 63) / 64;
    const line *one = (const line *)(((uintptr_t)first + 63) / 64 * 64);
    const line *other = (const line *)(((uintptr_t)second + 63) / 64 * 64);
    double begin = seconds_now(), elapsed, count = 0;

    if (n <= 0) {
        return 0;
    }
    do {
        sink = (double)(read_once(one, n, way) ^ read_once(other, n, way));
        count += 2.0 * 64 * (double)n;
        elapsed = seconds_now() - begin;
    } while (elapsed < seconds);
    return count / elapsed;
}
