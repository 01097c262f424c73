/* The kernel for bfloat16 with AMX, summed in float. Only Linux lets processes use it. */
#if defined(__x86_64__) && defined(__linux__)
#include "isa/amx_bf16_f32.h"

#include "kernel/amx/kernel.h"

#include "isa/end.h"
#endif
