/* Rows of heads in float32. */
#include "attention.h"

#include <string.h>

typedef float real;
typedef double other;
#define REAL_DTYPE ATTN_F32

static void
narrow_row(real *row, ptrdiff_t n, attn_dtype dtype)
{
    (void)row, (void)n, (void)dtype;
}

#include "heads.inc.h"

void
attn_run_heads_f32(const attn_heads_problem *p, const attn_heads_task *task,
                   const attn_kernel *kernel, void *memory)
{
    run_heads(p, task, kernel, memory);
}
