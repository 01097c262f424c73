/* Rows of heads in float64. */
#include "attention.h"
#include "half.h"

#include <math.h>
#include <string.h>

typedef double real;
typedef float other;
#define REAL_DTYPE ATTN_F64

/* A float on the number's side of every tie between halves. */
static float
round_to_odd(double x)
{
    float single = (float)x;
    uint32_t bits = attn_bits_from_float(single);

    if (fabs((double)single) > fabs(x)) {
        bits--; /* toward zero */
    }
    return attn_float_from_bits(bits | ((double)attn_float_from_bits(bits) != x));
}

/* Rounds to float: what halves are then rounded from. Float16 is rounded once, bfloat16
 * twice, as NumPy and ml_dtypes do. */
static void
narrow_row(real *row, ptrdiff_t n, attn_dtype dtype)
{
    for (ptrdiff_t k = 0; k < n; k++) {
        row[k] = (double)(dtype == ATTN_F16 ? round_to_odd(row[k]) : (float)row[k]);
    }
}

#include "heads.inc.h"

void
attn_run_heads_f64(const attn_heads_problem *p, const attn_heads_task *task,
                   const attn_kernel *kernel, void *memory)
{
    run_heads(p, task, kernel, memory);
}
