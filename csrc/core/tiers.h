/* Kernels, and the tiers of instruction sets that have them. */
#ifndef ATTN_CORE_TIERS_H
#define ATTN_CORE_TIERS_H

#include "core/activate.h"
#include "core/attention.h"
#include "core/backward.h"
#include "core/bytes.h"
#include "core/linear.h"
#include "core/norm.h"
#include "core/rotary.h"

/* The algorithms of kernel/ compiled for one instruction set and dtype: they cannot fail,
 * allocate or see Python. */
typedef struct {
    attn_attention_kernel attention;
    attn_backward_kernel backward;
    attn_linear_kernel linear;
    attn_norm_kernel norm;
    attn_rotary_kernel rotary;
    attn_activate_kernel activate;
} attn_kernel;

typedef struct attn_tier {
    const char *name;
    bool (*supported)(void);
    const attn_kernel *f32;
    const attn_kernel *f64;
    const attn_kernel *bf16; /* or NULL; see attn_kernel_for */
    const attn_integer_kernel *integer;
    attn_integer_unit integer_unit; /* or NULL */
    const attn_byte_kernel *bytes;
    const attn_byte_unit *byte_unit; /* or NULL */
} attn_tier;

/* Tiers this CPU has, best first. NULL past the last one or if unknown. */
const attn_tier *attn_tier_at(int index);
const attn_tier *attn_tier_named(const char *name);
const attn_tier *attn_default_tier(void); /* the fastest; NULL where there is none */

/* The kernel for a dtype of arithmetic. If all operands of attention, of its gradients or of a
 * linear product are bfloat16, it may be one with bfloat16 products, whose bits differ; it may
 * lack gradients. */
const attn_kernel *attn_kernel_for(const attn_tier *, attn_dtype arithmetic,
                                   bool all_bf16);

const attn_attention_kernel *attn_attention_kernel_for(const attn_problem *,
                                                       const attn_tier *);

/* The same tier without bfloat16 products. */
const attn_tier *attn_portable_tier(const attn_tier *);

#endif
