/* The algorithms, once, in the vector vocabulary of vec/, and their table. An isa/ file
 * chooses instruction set, vocabulary and block sizes, then includes this; or amx/kernel.h,
 * where the CPU has a matrix unit. Nothing in kernel/ knows of threads or Python; it cannot
 * fail and allocates nothing. */
#ifndef ATTN_KERNEL_KERNEL_H
#define ATTN_KERNEL_KERNEL_H

#include "kernel/contract.h" /* first, so that it speaks first */

#include "core/tiers.h"
#include "kernel/attention/attend.h"
#include "kernel/backward/backward.h"
#include "kernel/linear/linear.h"
#if TERMS == 1
#include "kernel/rows/activate_array.h"
#include "kernel/rows/norm.h"
#include "kernel/rows/norm_vjp.h"
#include "kernel/rows/rotary.h"
#endif

extern const attn_kernel KERNEL;

const attn_kernel KERNEL = {
    .attention = {.workspace_size = attention_workspace_size,
                  .partial_size = partial_size,
                  .run = run_attention,
                  .run_chunk = run_attention_chunk,
                  .begin_combine = begin_combine,
                  .combine = combine,
                  .end_combine = end_combine},
    .linear =
        {
#if HAS_MANY_ROWS
            .many_rows = linear_many_rows,
            .many_rows_unit = GROUP_ROWS,
            .narrow_rows = NARROW_ROWS,
#endif
            .has_row_form = true,
            .workspace_size = linear_workspace_size,
#if REAL_BITS == 32 && TERMS == 1
            .load_row = load_linear_row,
            .store_sums = store_linear_sums,
#endif
            .run = run_linear},
    .backward = {.divided_work = 15,
                 .workspace_size = backward_workspace_size,
                 .run_delta = run_delta,
                 .run = run_backward,
                 .run_sink = run_sink},
#if TERMS == 1 /* what has no products is float's */
    .norm = {.run = normalize,
             .vjp_workspace_size = vjp_workspace_size,
             .run_vjp = normalize_vjp,
             .add_blocks = add_norm_blocks},
    .rotary = {.workspace_size = rotary_workspace_size, .run = run_rotary},
    .activate = {.run = run_activate},
#endif
};

#endif
