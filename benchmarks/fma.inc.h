/* A loop of fused multiply-adds, once for each includer's FMA_NAME, FMA_TARGET (an
 * attribute), FMA_REAL and FMA_VECTOR. Twelve chains: a latency of four cycles with two
 * units needs eight, and AVX2 has sixteen registers. They start apart, or a compiler
 * would make them one; it contracts x * m + c by itself. */

FMA_TARGET static double
FMA_NAME(ptrdiff_t n_steps)
{
    const FMA_VECTOR m = (FMA_VECTOR){0} + (FMA_REAL)seed_factor;
    const FMA_VECTOR c = (FMA_VECTOR){0} + (FMA_REAL)seed_term;
    FMA_VECTOR a0 = c, a1 = a0 + c, a2 = a1 + c, a3 = a2 + c, a4 = a3 + c, a5 = a4 + c;
    FMA_VECTOR b0 = a5 + c, b1 = b0 + c, b2 = b1 + c, b3 = b2 + c, b4 = b3 + c;
    FMA_VECTOR b5 = b4 + c;
    FMA_VECTOR sum;

    for (ptrdiff_t i = 0; i < n_steps; i++) {
        a0 = a0 * m + c;
        a1 = a1 * m + c;
        a2 = a2 * m + c;
        a3 = a3 * m + c;
        a4 = a4 * m + c;
        a5 = a5 * m + c;
        b0 = b0 * m + c;
        b1 = b1 * m + c;
        b2 = b2 * m + c;
        b3 = b3 * m + c;
        b4 = b4 * m + c;
        b5 = b5 * m + c;
    }
    sum = a0 + a1 + a2 + a3 + a4 + a5 + b0 + b1 + b2 + b3 + b4 + b5;
    sink = ((const FMA_REAL *)&sum)[0];
    return (double)n_steps * 2 * N_CHAINS * (sizeof(FMA_VECTOR) / sizeof(FMA_REAL));
}

#undef FMA_NAME
#undef FMA_TARGET
#undef FMA_REAL
#undef FMA_VECTOR
