/* The functions of kernel/math/, exp.h and log.h: the same bits in every tier, and errors
 * against the C library in a higher precision. */
#include "core/limits.h"
#include "core/pool.h"
#include "core/quota.h"
#include "support/check.h"
#include "support/functions.h"

#include <fenv.h>
#include <float.h>
#include <math.h>
#include <string.h>

#define COUNT(array) (ptrdiff_t)(sizeof(array) / sizeof((array)[0]))

/* The difference in units of the last of `digits` binary digits of `want`. */
static double
ulps(long double got, long double want, int digits)
{
    int exponent;

    if (isnan(want) || isnan(got)) {
        return isnan(want) && isnan(got) ? 0 : HUGE_VAL;
    }
    if (got == want) {
        return 0;
    }
    frexpl(want, &exponent);
    return (double)ldexpl(fabsl(got - want), digits - exponent);
}

/* ---- Sweeps over bit patterns ------------------------------------------------------- */

/* A function of kernel/math/ and what is right. */
typedef struct {
    const char *name;
    ptrdiff_t offset; /* of its pointer in `functions` */
    /* By how many units in the last place a result is off, and may be. */
    double (*error)(int bits, long double x, long double got);
    double (*allowed)(int bits, long double x);
} subject;

/* A range of x, as bit patterns. */
typedef struct {
    const char *name;
    int bits;
    uint64_t first, last;
} range;

/* What one worker found. */
typedef struct {
    double worst;
    long double worst_at;
    bool wrong;
    long double wrong_at;
    const char *differs; /* a tier that gave other bits */
} finding;

typedef struct {
    const subject *subject;
    int bits;
    uint64_t first, step, count; /* patterns first, first + step, ... */
    finding findings[ATTN_MAX_THREADS];
} sweep;

static void
find_errors(const sweep *s, finding *found, const reals *x, const reals *got)
{
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        long double at = real_at(x, s->bits, i);
        double error = s->subject->error(s->bits, at, real_at(got, s->bits, i));
        if (!(error <= s->subject->allowed(s->bits, at))) {
            found->wrong = true;
            found->wrong_at = at;
        }
        if (error > found->worst) {
            found->worst = error;
            found->worst_at = at;
        }
    }
}

static void
sweep_piece(void *context, ptrdiff_t index, int worker)
{
    sweep *s = context;
    const functions *f;
    reals x, first, other;
    unary *function;

    for (ptrdiff_t i = 0; i < PIECE; i++) {
        uint64_t n = (uint64_t)index * PIECE + (uint64_t)i;
        set_bits(&x, s->bits, i, s->first + (n < s->count ? n : 0) * s->step);
    }
    for (int t = 0; (f = functions_at(s->bits, t)) != NULL; t++) {
        memcpy(&function, (const char *)f + s->subject->offset, sizeof function);
        function(&x, t == 0 ? &first : &other, PIECE);
        if (t > 0 && memcmp(&first, &other, PIECE * (size_t)s->bits / 8) != 0) {
            s->findings[worker].differs = f->tier;
        }
    }
    find_errors(s, &s->findings[worker], &x, &first);
}

/* Tries the function on all floats of a range where exhaustive, else a million. */
static void
run_sweep(const subject *what, const range *r)
{
    static sweep s;
    attn_control control = {.poll = NULL};
    const finding *worst = &s.findings[0];

    memset(&s, 0, sizeof s);
    s.subject = what;
    s.bits = r->bits;
    s.first = r->first;
    s.step = ((r->last - r->first) >> (exhaustive ? 26 : 20)) | 1;
    s.step = exhaustive && r->bits == 32 ? 1 : s.step;
    s.count = (r->last - r->first) / s.step + 1;
    attn_parallel_for((ptrdiff_t)((s.count + PIECE - 1) / PIECE), attn_cpu_limit(),
                      false, sweep_piece, &s, &control);
    for (int w = 0; w < ATTN_MAX_THREADS; w++) {
        const finding *found = &s.findings[w];
        expect(found->differs == NULL, "%s of %d bits: other bits on %s", what->name,
               s.bits, found->differs);
        expect(!found->wrong, "%s of %d bits: off by too much at %.10Lg", what->name,
               s.bits, found->wrong_at);
        worst = found->worst > worst->worst ? found : worst;
    }
    note("%s of %d bits, %s: %.3f ulp at most, at %.10Lg", what->name, s.bits, r->name,
         worst->worst, worst->worst_at);
}

/* What the function gives for x in each tier and size. */
static void
expect_value(const subject *what, double x, double want)
{
    const functions *f;
    unary *function;

    for (int bits = 32; bits <= 64; bits += 32) {
        for (int t = 0; (f = functions_at(bits, t)) != NULL; t++) {
            static reals from, to;
            for (ptrdiff_t i = 0; i < f->lanes; i++) {
                from.f64[i] = bits == 64 ? x : from.f64[i];
                from.f32[i] = bits == 32 ? (float)x : from.f32[i];
            }
            memcpy(&function, (const char *)f + what->offset, sizeof function);
            function(&from, &to, f->lanes);
            long double got = real_at(&to, bits, 0);
            expect(isnan(want) ? isnan(got) : got == (long double)want,
                   "%s of %g, %d bits, %s: %Lg", what->name, x, bits, f->tier, got);
        }
    }
}

/* ---- exp ---------------------------------------------------------------------------- */

static int
digits_of(int bits)
{
    return bits == 32 ? FLT_MANT_DIG : DBL_MANT_DIG;
}

static long double
smallest(int bits)
{
    return bits == 32 ? (long double)FLT_MIN : (long double)DBL_MIN;
}

/* double is 29 bits more than float needs, and its functions are much faster. */
static long double
exact_exp(int bits, long double x)
{
    return bits == 32 ? (long double)exp((double)x) : expl(x);
}

/* Against e^x. Near the smallest normal number, 0 is right as well. */
static double
exp_error(int bits, long double x, long double got)
{
    long double want = exact_exp(bits, x);
    long double border = smallest(bits) * (1 + 0x1p-10L);

    if (got == 0 && want < border) {
        return 0;
    }
    return got < smallest(bits) ? HUGE_VAL : ulps(got, want, digits_of(bits));
}

/* The rounding of the constant log2(e) gives the result a relative error in proportion to
 * |x|: 0.22 units of 2^-24 for float, 0.13 units of 2^-53 for double. */
static double
exp_allowed(int bits, long double x)
{
    long double share = bits == 32 ? 0.23L : 0.14L;
    return (double)(1 + share * fminl(fabsl(x), 2000));
}

/* Subnormal numbers cost some CPUs a hundred times as much as others: where e^x is 0 none is
 * computed on the way. NEON's multiplications do not differ. */
static void
expect_no_underflow(int bits)
{
#ifdef __x86_64__
    static reals x, to;
    const functions *f;

    for (ptrdiff_t i = 0; i < PIECE; i++) {
        double number =
            i % 2 ? -1 - (double)i * 2000 / PIECE : -ldexp(1, (int)(i % 100));
        number = i == 0 ? -INFINITY : number;
        if (bits == 32) {
            x.f32[i] = (float)number;
        } else {
            x.f64[i] = number;
        }
    }
    for (int t = 0; (f = functions_at(bits, t)) != NULL; t++) {
        feclearexcept(FE_ALL_EXCEPT);
        f->exp(&x, &to, PIECE);
        expect(!fetestexcept(FE_UNDERFLOW), "e^x of %d bits underflows on %s", bits,
               f->tier);
    }
#else
    (void)bits;
#endif
}

void
test_exp_over_its_range(void)
{
    static const subject exp_subject = {"e^x", offsetof(functions, exp), exp_error,
                                        exp_allowed};
    static const range ranges[] = {
        {"x < 0", 32, 0x80000000, 0xffffffff},
        {"x < 0", 64, UINT64_C(0x8000000000000000), UINT64_C(0xffffffffffffffff)},
        {"-1 <= x <= -2^-26", 32, 0xb2800000, 0xbf800000},
        {"-1 <= x <= -2^-55", 64, UINT64_C(0xbc80000000000000),
         UINT64_C(0xbff0000000000000)},
        {"-1024 <= x <= -1", 32, 0xbf800000, 0xc4800000},
        {"-1024 <= x <= -1", 64, UINT64_C(0xbff0000000000000),
         UINT64_C(0xc090000000000000)},
    };

    for (ptrdiff_t k = 0; k < COUNT(ranges); k++) {
        run_sweep(&exp_subject, &ranges[k]);
    }
    expect_value(&exp_subject, 0.0, 1);
    expect_value(&exp_subject, -0.0, 1);
    expect_value(&exp_subject, -1e-45, 1);
    expect_value(&exp_subject, (double)-FLT_MAX, 0);
    expect_value(&exp_subject, -INFINITY, 0);
    expect_value(&exp_subject, (double)NAN, (double)NAN);
    expect_no_underflow(32);
    expect_no_underflow(64);
}

/* ---- tanh --------------------------------------------------------------------------- */

static double
tanh_error(int bits, long double x, long double got)
{
    long double want = bits == 32 ? (long double)tanh((double)x) : tanhl(x);

    if (fabsl(x) < smallest(bits)) { /* nothing is lost but digits that are not there */
        return fabsl(got - want) <= smallest(bits) * 0x1p-22L ? 0 : HUGE_VAL;
    }
    if (fabsl(x) >= (bits == 32 ? 10 : 20)) {
        return fabsl(got) == 1 && (got > 0) == (x > 0) ? 0 : HUGE_VAL;
    }
    return ulps(got, want, digits_of(bits));
}

static double
tanh_allowed(int bits, long double x)
{
    (void)bits;
    (void)x;
    return 4;
}

static void
expect_odd(int bits, uint64_t first, uint64_t step)
{
    static reals x, minus_x, to, minus_to;
    const functions *f = functions_at(bits, 0);
    uint64_t sign = UINT64_C(1) << (bits - 1);

    for (ptrdiff_t i = 0; i < PIECE; i++) {
        set_bits(&x, bits, i, first + (uint64_t)i * step);
        set_bits(&minus_x, bits, i, sign | (first + (uint64_t)i * step));
    }
    f->tanh(&x, &to, PIECE);
    f->tanh(&minus_x, &minus_to, PIECE);
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        expect(get_bits(&minus_to, bits, i) == (sign | get_bits(&to, bits, i)),
               "%d bits: tanh(-%Lg) is not -tanh", bits, real_at(&x, bits, i));
    }
}

void
test_tanh_over_its_range(void)
{
    static const subject tanh_subject = {"tanh", offsetof(functions, tanh), tanh_error,
                                         tanh_allowed};
    static const range ranges[] = {
        {"all x", 32, 0, 0xffffffff},
        {"all x", 64, 0, UINT64_C(0xffffffffffffffff)},
        {"2^-30 <= x <= 32", 32, 0x30800000, 0x42000000},
        {"2^-60 <= x <= 32", 64, UINT64_C(0x3c30000000000000),
         UINT64_C(0x4040000000000000)},
    };

    for (ptrdiff_t k = 0; k < COUNT(ranges); k++) {
        run_sweep(&tanh_subject, &ranges[k]);
    }
    expect_value(&tanh_subject, 0, 0);
    expect_value(&tanh_subject, INFINITY, 1);
    expect_value(&tanh_subject, -INFINITY, -1);
    expect_value(&tanh_subject, (double)NAN, (double)NAN);
    expect_odd(32, 1, 0x7f800000 / PIECE);
    expect_odd(64, 1, UINT64_C(0x7ff0000000000000) / PIECE);
}

/* ---- log of lanes ------------------------------------------------------------------- */

static double
log_lanes_error(int bits, long double x, long double got)
{
    long double want = bits == 32 ? (long double)log((double)x) : logl(x);
    return ulps(got, want, digits_of(bits));
}

/* As for log_of, and the coefficients are rounded. */
static double
log_lanes_allowed(int bits, long double x)
{
    (void)bits;
    (void)x;
    return 5;
}

void
test_log_of_lanes_over_its_range(void)
{
    static const subject log_subject = {"log of lanes", offsetof(functions, log_lanes),
                                        log_lanes_error, log_lanes_allowed};
    static const range ranges[] = {
        {"FLT_MIN .. 2^126", 32, 0x00800000, 0x7e800000},
        {"DBL_MIN .. 2^126", 64, UINT64_C(0x0010000000000000),
         UINT64_C(0x47d0000000000000)},
        {"1/2 .. 1", 32, 0x3f000000, 0x3f800000},
        {"1/2 .. 1", 64, UINT64_C(0x3fe0000000000000), UINT64_C(0x3ff0000000000000)},
        {"1 - 2^-20 .. 1", 64, UINT64_C(0x3feffffe00000000),
         UINT64_C(0x3ff0000000000000)},
    };

    for (ptrdiff_t k = 0; k < COUNT(ranges); k++) {
        run_sweep(&log_subject, &ranges[k]);
    }
    expect_value(&log_subject, 1, 0);
    expect_value(&log_subject, (double)NAN, (double)NAN);
}

/* ---- log ---------------------------------------------------------------------------- */

#define LOG_ALLOWED 4.2 /* units in the last place; log_of says why */

/* The largest error over PIECE numbers from first on; the same bits in every file. */
static double
log_piece(uint64_t first, uint64_t step)
{
    static reals x, to, other;
    const functions *f;
    double worst = 0;

    for (ptrdiff_t i = 0; i < PIECE; i++) {
        x.u64[i] = first + (uint64_t)i * step;
    }
    functions_at(64, 0)->log(x.f64, to.f64, PIECE);
    for (ptrdiff_t i = 0; i < PIECE; i++) {
        worst = fmax(worst, ulps(to.f64[i], logl(x.f64[i]), DBL_MANT_DIG));
    }
    for (int bits = 32; bits <= 64; bits += 32) {
        for (int t = 0; (f = functions_at(bits, t)) != NULL; t++) {
            f->log(x.f64, other.f64, PIECE);
            expect(memcmp(&to, &other, sizeof to) == 0,
                   "log of %s, %d bits: other bits", f->tier, bits);
        }
    }
    return worst;
}

void
test_log_over_its_range(void)
{
    static const struct {
        const char *name;
        uint64_t first, last;
    } ranges[] = {
        {"1/2 .. 1", UINT64_C(0x3fe0000000000000), UINT64_C(0x3ff0000000000000)},
        {"1 .. 1 + 2^-20", UINT64_C(0x3ff0000000000000), UINT64_C(0x3ff0000100000000)},
        {"1.03 .. 1.0315", UINT64_C(0x3ff07ae147ae147b), UINT64_C(0x3ff0810624dd2f1b)},
        {"1 .. 2^20", UINT64_C(0x3ff0000000000000), UINT64_C(0x4130000000000000)},
        {"to the largest", UINT64_C(0x3ff0000000000000), UINT64_C(0x7fefffffffffffff)}};
    const uint64_t n_pieces = exhaustive ? 10000 : 30;

    for (ptrdiff_t k = 0; k < COUNT(ranges); k++) {
        uint64_t step = (ranges[k].last - ranges[k].first) / (n_pieces * PIECE);
        double worst = 0;
        for (uint64_t piece = 0; piece < n_pieces; piece++) {
            uint64_t first = ranges[k].first + piece * PIECE * step;
            worst = fmax(worst, log_piece(first, step));
        }
        note("%s: %.3f ulp at most", ranges[k].name, worst);
        expect(worst < LOG_ALLOWED, "log is off by %.3f ulp", worst);
    }
}
