/* What a CPU with a matrix unit does on it, attention, its gradients and linear products, and their
 * table. An isa/ file includes this instead of kernel.h. */
#ifndef ATTN_KERNEL_AMX_KERNEL_H
#define ATTN_KERNEL_AMX_KERNEL_H

#include "kernel/contract.h" /* first, so that it speaks first */

#include "core/tiers.h"
#include "kernel/amx/linear.h"
#include "kernel/attention/attend.h"
#include "kernel/backward/backward.h"

extern const attn_kernel KERNEL;

const attn_kernel KERNEL = {
    .attention = {.workspace_size = attention_workspace_size,
                  .partial_size = partial_size,
                  .run = run_attention,
                  .run_chunk = run_attention_chunk,
                  .begin_combine = begin_combine,
                  .combine = combine,
                  .end_combine = end_combine},
    .linear = {.many_rows = unit_many_rows,
               .many_rows_unit = UNIT_SQUARE,
               .narrow_rows = ATTN_NARROW_ROWS,
               .workspace_size = matrix_workspace_size,
               .run = run_matrix},
    .backward = {.divided_work = 20,
                 .workspace_size = backward_workspace_size,
                 .run_delta = run_delta,
                 .run = run_backward,
                 .run_sink = run_sink},
};

#endif
