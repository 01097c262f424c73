/* The functions that attention needs, in the vocabulary of vec/: every tier takes the same
 * IEEE steps, so gives the same bits. Included by kernel.inc.h only.
 *
 * exp2: 2^x = 2^n * 2^r with n = round(x) and |r| <= 1/2. The coefficients of
 * q(r) = (2^r - 1) / r minimise the relative error of 1 + r q(r) (Remez's algorithm at 60
 * digits); it is 2.6e-9 for float and 1.8e-17 for double, so rounding prevails. Over its
 * whole range the error is below 1 unit in the last place (tests/core). */
#if REAL_BITS == 32
#define REAL_MAX FLT_MAX
#define EXP2_LOWEST (-125.99998f) /* 2^x, x rounded, is a normal number from here on */
#define TANH_IS_ONE 10.0f         /* tanh(x) rounds to 1 from below here on */
static const real exp2_terms[] = {0.6931472149680279f,    0.24022652873288738f,
                                  0.05550310551013797f,   0.009617692972993063f,
                                  0.0013406643902351759f, 0.00015594678161326619f};
#else
#define REAL_MAX DBL_MAX
#define EXP2_LOWEST (-1021.9999999999995)
#define TANH_IS_ONE 20.0
static const real exp2_terms[] = {
    0.69314718055994569675,     0.24022650695910098007,   0.055504108664790394552,
    0.0096181291076070023796,   0.0013333558153439964747, 0.0001540353044157213033,
    0.000015252727385193868197, 1.3215442675329822143e-6, 1.0180647659234138888e-7,
    7.0725704128144235096e-9,   4.078071929588336665e-10};
#endif

static const real log2_e = (real)1.44269504088896340736;

/* (2^r - 1) / r for |r| <= 1/2 */
static INLINE v_real
exp2_slope(v_real r)
{
    enum { DEGREE = sizeof exp2_terms / sizeof exp2_terms[0] - 1 };
    v_real q = v_set1(exp2_terms[DEGREE]);

    for (int k = DEGREE - 1; k >= 0; k--) {
        q = v_fma(q, r, v_set1(exp2_terms[k]));
    }
    return q;
}

/* e^x for x <= 0: results below the smallest normal number are 0; NaN stays NaN. */
static INLINE v_real
exp_of(v_real x)
{
    v_real y = v_mul(x, v_set1(log2_e));
    v_real n = v_round(y);
    v_real r = v_fms(x, v_set1(log2_e), n); /* not y - n: y is rounded */
    v_real power = v_scale2(v_fma(exp2_slope(r), r, v_set1(1)), n);

    return v_select(v_less(y, v_set1(EXP2_LOWEST)), v_set1(0), power);
}

/* tanh(|x|) = E / (E + 2) with E = e^(2|x|) - 1, accurate where x is small. */
static INLINE v_real
tanh_of(v_real x)
{
    v_real size = v_max(x, v_sub(v_set1(0), x));
    v_real limit = v_set1(TANH_IS_ONE);
    v_real y = v_select(v_less(limit, size), limit, size);
    v_real n = v_round(v_mul(y, v_set1(2 * log2_e)));
    v_real r = v_fms(y, v_set1(2 * log2_e), n);
    v_real power = v_scale2(v_set1(1), n);
    v_real e = v_fma(power, v_mul(exp2_slope(r), r), v_sub(power, v_set1(1)));
    v_real t = v_div(e, v_add(e, v_set1(2)));

    return v_select(v_less(x, v_set1(0)), v_sub(v_set1(0), t), t);
}

/* The natural logarithm of a finite x >= 1/2, by the series of 2 atanh((f - 1) / (f + 1));
 * its first omitted term is below 2^-60 of the sum. */
static double
log_of(double x)
{
    const double ln2_high = 0x1.62e42feep-1; /* 32 bits: exact times any exponent */
    const double ln2_low = 0x1.a39ef35793c76p-33;
    uint64_t bits;
    double f;

    memcpy(&bits, &x, sizeof bits);
    /* The exponent that brings the fraction into [sqrt(1/2), sqrt(2)) */
    int64_t exponent = (int64_t)((bits + UINT64_C(0x00095f619980c433)) >> 52) - 1023;
    bits -= (uint64_t)exponent << 52;
    memcpy(&f, &bits, sizeof f);

    double s = (f - 1) / (f + 1);
    double z = s * s;
    double sum = 1.0 / 21;
    for (int k = 19; k >= 1; k -= 2) {
        sum = sum * z + 1.0 / k;
    }
    return (double)exponent * ln2_high + (2 * s * sum + (double)exponent * ln2_low);
}

static INLINE v_real
quiet_nan_or(v_real x)
{
    return v_select(v_is_nan(x), v_set1((real)NAN), x);
}
