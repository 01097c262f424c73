/* Linear products of bfloat16 on AMX. */
#if defined(__x86_64__)
#include "isa/amx_bf16_f32.h"

/* Of the kernel's parts this takes what belongs to linear products. */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernel/linear/matrix_unit.h"

extern const attn_linear_kernel attn_linear_amx_bf16;

const attn_linear_kernel attn_linear_amx_bf16 = {
    .wide_rows = unit_wide_rows,
    .workspace_size = matrix_workspace_size,
    .run = run_matrix,
};

#include "isa/end.h"
#endif
