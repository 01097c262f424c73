/* A loop of fused multiply-adds, once for each includer's FMA_NAME, FMA_TARGET (an
 * attribute), FMA_REAL and FMA_VECTOR. The chains start apart, or a compiler would make
 * them one; it contracts x * m + c by itself. */

FMA_TARGET static double
FMA_NAME(ptrdiff_t n_steps)
{
    const FMA_VECTOR m = (FMA_VECTOR){0} + (FMA_REAL)seed_factor;
    const FMA_VECTOR c = (FMA_VECTOR){0} + (FMA_REAL)seed_term;
    FMA_VECTOR x[N_CHAINS], sum = c;

    EACH_CHAIN(i)
    {
        x[i] = sum += c;
    }
    for (ptrdiff_t step = 0; step < n_steps; step++) {
        EACH_CHAIN(i)
        {
            x[i] = x[i] * m + c;
        }
    }
    EACH_CHAIN(i)
    {
        sum += x[i];
    }
    sink = ((const FMA_REAL *)&sum)[0];
    return (double)n_steps * 2 * N_CHAINS * (sizeof(FMA_VECTOR) / sizeof(FMA_REAL));
}

#undef FMA_NAME
#undef FMA_TARGET
#undef FMA_REAL
#undef FMA_VECTOR
