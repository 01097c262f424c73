/* The kernel for bfloat16 with AMX, summed in float. */
#if defined(__x86_64__)
#include "isa/amx_bf16_f32.h"

/* Of what products by vectors need it takes a part. */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernel/kernel.h"

#include "isa/end.h"
#endif
