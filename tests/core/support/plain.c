/* Plain loops, from the definitions. */
#include "support/plain.h"

#include "support/problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Attention ---------------------------------------------------------------------- */

/* In the order scale, softcap, bias, mask, softmax. */
static double
logit(const attn_problem *p, ptrdiff_t batch, ptrdiff_t head, ptrdiff_t i, ptrdiff_t j)
{
    double sum = 0;

    if (!may_see(p, batch, head, i, j)) {
        return -HUGE_VAL;
    }
    for (ptrdiff_t d = 0; d < p->head_dim; d++) {
        sum += read_element(p, &p->query, batch, head, i, d) *
               read_element(p, &p->key, batch, head / p->group, j, d);
    }
    sum *= p->scale;
    if (p->key_scale.data != NULL) {
        sum *= read_element(p, &p->key_scale, batch, head / p->group, j, 0);
    }
    if (p->softcap > 0) {
        sum = p->softcap * tanh(sum / p->softcap);
    }
    if (p->bias.data != NULL) {
        sum += read_element(p, &p->bias, batch, head, i, j);
    }
    return sum;
}

/* Turns logits into weights in place; those that are -inf have weight 0. */
static void
softmax(double *weights, ptrdiff_t n, double sink, double *lse)
{
    double max = sink, sum = 0;

    for (ptrdiff_t j = 0; j < n; j++) {
        max = weights[j] > max ? weights[j] : max;
    }
    max = isinf(max) && max < 0 ? 0 : max;
    for (ptrdiff_t j = 0; j < n; j++) {
        sum += exp(weights[j] - max);
    }
    sum += exp(sink - max);
    *lse = max + log(sum);
    for (ptrdiff_t j = 0; j < n; j++) {
        bool hidden = weights[j] == -HUGE_VAL;
        weights[j] = hidden ? 0 : exp(weights[j] - max) / sum;
    }
}

void
plain_row(const attn_problem *p, ptrdiff_t batch, ptrdiff_t head, ptrdiff_t i,
          double *output, double *weights, double *lse)
{
    double sink = -HUGE_VAL;

    if (p->sinks.data != NULL) {
        sink = read_element(p, &p->sinks, batch, head, 0, 0);
    }
    for (ptrdiff_t j = 0; j < p->n_keys; j++) {
        weights[j] = logit(p, batch, head, i, j);
    }
    softmax(weights, p->n_keys, sink, lse);
    for (ptrdiff_t d = 0; d < p->value_dim; d++) {
        output[d] = 0;
    }
    for (ptrdiff_t j = 0; j < p->n_keys; j++) {
        double weight = weights[j];
        if (!may_see(p, batch, head, i, j)) {
            continue;
        }
        if (p->value_scale.data != NULL) {
            weight *= read_element(p, &p->value_scale, batch, head / p->group, j, 0);
        }
        for (ptrdiff_t d = 0; d < p->value_dim; d++) {
            output[d] +=
                weight * read_element(p, &p->value, batch, head / p->group, j, d);
        }
    }
}

/* ---- Heads on their way to attention ------------------------------------------------- */

/* What the arithmetic makes of an exact result. Sums, products, quotients and roots of floats
 * are rounded to double first, which changes nothing: it has more than twice their digits. */
static double
as_real(attn_dtype arithmetic, double x)
{
    return arithmetic == ATTN_F32 ? (double)(float)x : x;
}

/* x * y + z, rounded once. */
static double
fused(attn_dtype arithmetic, double x, double y, double z)
{
    return arithmetic == ATTN_F32 ? (double)fmaf((float)x, (float)y, (float)z)
                                  : fma(x, y, z);
}

/* The nearest number of a format, ties to even, by the definition of IEEE 754. */
static double
nearest(double x, int fraction_bits, int lowest_exponent, double largest)
{
    int exponent;

    frexp(x, &exponent);
    exponent -= 1; /* of a fraction in [1, 2) */
    exponent = exponent < lowest_exponent ? lowest_exponent : exponent;
    double unit = ldexp(1, exponent - fraction_bits);
    double rounded = nearbyint(x / unit) * unit;
    return fabs(rounded) > largest ? copysign(HUGE_VAL, x) : rounded;
}

/* As NumPy and ml_dtypes store it: bfloat16 by way of float. */
static double
stored_as(attn_dtype dtype, double x)
{
    switch (dtype) {
    case ATTN_F16: return nearest(x, 10, -14, 65504);
    case ATTN_BF16: return nearest((double)(float)x, 7, -126, 0x1.fep127);
    case ATTN_F32: return (double)(float)x;
    case ATTN_I16: /* as made */
    case ATTN_I8: return fmin(fmax(nearbyint((double)(float)x), -127), 127);
    case ATTN_F64: break;
    }
    return x;
}

static void
store_row_as(attn_dtype dtype, double *row, ptrdiff_t n)
{
    for (ptrdiff_t k = 0; k < n; k++) {
        row[k] = stored_as(dtype, row[k]);
    }
}

/* The sum of the numbers less `less`, or of their squares: 16 chains, added up pairwise. */
static double
sum_of(attn_dtype arithmetic, const double *row, ptrdiff_t n, double less, bool squares)
{
    double chains[16] = {0};

    for (ptrdiff_t k = 0; k < n; k++) {
        double *chain = &chains[k % 16];
        double x = as_real(arithmetic, row[k] - less);
        *chain =
            squares ? fused(arithmetic, x, x, *chain) : as_real(arithmetic, *chain + x);
    }
    for (int step = 8; step > 0; step /= 2) {
        for (int i = 0; i < step; i++) {
            chains[i] = as_real(arithmetic, chains[i] + chains[i + step]);
        }
    }
    return chains[0];
}

static void
plain_norm(const attn_norm_problem *p, double *row)
{
    const attn_dtype arithmetic = p->arithmetic;
    const ptrdiff_t n = p->n_columns, size = attn_storage_of(arithmetic)->bytes;
    double mean = 0;

    if (p->centre) {
        mean = as_real(arithmetic, sum_of(arithmetic, row, n, 0, false) / (double)n);
    }
    double variance = sum_of(arithmetic, row, n, mean, true) / (double)n;
    variance = as_real(arithmetic, variance) + as_real(arithmetic, p->eps);
    double root = as_real(arithmetic, sqrt(as_real(arithmetic, variance)));
    double scale = as_real(arithmetic, 1 / root);
    for (ptrdiff_t k = 0; k < n; k++) {
        double weight = read_number((const char *)p->weight + k * size, arithmetic);
        double y = as_real(arithmetic, as_real(arithmetic, row[k] - mean) * scale);
        row[k] = as_real(arithmetic, y * weight);
        if (p->bias != NULL) {
            double bias = read_number((const char *)p->bias + k * size, arithmetic);
            row[k] = fused(arithmetic, y, weight, bias);
        }
    }
}

/* Each product, and their sum, is rounded. */
static void
plain_rotation(const attn_rotary_problem *p, attn_dtype arithmetic, const char *cos_sin,
               double *row)
{
    const ptrdiff_t n_pairs = p->rotary_dim / 2;
    const ptrdiff_t size = attn_storage_of(arithmetic)->bytes;

    for (ptrdiff_t k = 0; k < n_pairs; k++) {
        double *one = row + (p->interleaved ? 2 * k : k);
        double *two = one + (p->interleaved ? 1 : n_pairs);
        double c = read_number(cos_sin + k * size, arithmetic);
        double s = read_number(cos_sin + (n_pairs + k) * size, arithmetic);
        double first = as_real(arithmetic, *one * c) - as_real(arithmetic, *two * s);
        double second = as_real(arithmetic, *two * c) + as_real(arithmetic, *one * s);
        *one = as_real(arithmetic, first);
        *two = as_real(arithmetic, second);
    }
}

/* Step by step, every number from two of the step before. */
static void
plain_mixing(ptrdiff_t n, attn_dtype arithmetic, double *row)
{
    double *before = calloc((size_t)n + 1, sizeof *before);
    ptrdiff_t block = 1;

    if (before == NULL) {
        abort();
    }
    for (; n % (2 * block) == 0; block *= 2) {
        memcpy(before, row, (size_t)n * sizeof *row);
        for (ptrdiff_t k = 0; k < n; k++) {
            double other = before[k ^ block];
            bool second = (k & block) != 0;
            row[k] =
                as_real(arithmetic, second ? other - before[k] : before[k] + other);
        }
    }
    for (ptrdiff_t k = 0; k < n; k++) {
        double factor = as_real(arithmetic, 1 / sqrt((double)block));
        row[k] = as_real(arithmetic, row[k] * factor);
    }
    free(before);
}

/* A head after its norm, which may be one of as many heads as it has columns for. */
static void
plain_head(const attn_rotary_problem *p, ptrdiff_t batch, ptrdiff_t head,
           ptrdiff_t token, double *output)
{
    bool together = p->norm != NULL && p->norm->n_columns != p->head_dim;
    ptrdiff_t n_heads = together ? p->n_heads : 1, first = together ? 0 : head;
    double *row = calloc((size_t)(n_heads * p->head_dim) + 1, sizeof *row), *to = row;

    if (row == NULL) {
        abort();
    }
    for (ptrdiff_t h = first; h < first + n_heads; h++) {
        const char *input = attn_address(&p->input, &p->batch, batch, h, token);
        for (ptrdiff_t k = 0; k < p->head_dim; k++) {
            *to++ = read_number(input + k * p->input.column_stride, p->input.dtype);
        }
    }
    if (p->norm != NULL) {
        plain_norm(p->norm, row);
        store_row_as(p->dtype, row, n_heads * p->head_dim);
    }
    memcpy(output, row + (head - first) * p->head_dim,
           (size_t)p->head_dim * sizeof *row);
    free(row);
}

void
plain_rotary(const attn_rotary_problem *p, ptrdiff_t batch, ptrdiff_t head,
             ptrdiff_t token, double *output)
{
    const attn_dtype arithmetic = attn_storage_of(p->dtype)->arithmetic;
    const char *cos_sin = attn_address(&p->cos_sin, &p->batch, batch, head, token);

    plain_head(p, batch, head, token, output);
    if (cos_sin != NULL) {
        plain_rotation(p, arithmetic, cos_sin, output);
        store_row_as(p->dtype, output, p->head_dim);
    }
    if (p->mixed && p->head_dim > 0) {
        plain_mixing(p->head_dim, arithmetic, output);
    }
    store_row_as(p->cache_dtype, output, p->head_dim);
}
