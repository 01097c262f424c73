/* The kernel for float with NEON. */
#if defined(__aarch64__)
#include "isa/neon_f32.h"

#include "kernel/kernel.h"
#endif
