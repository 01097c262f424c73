/* The kernel for double with NEON. */
#if defined(__aarch64__)
#include "isa/neon_f64.h"

#include "kernel/kernel.h"
#endif
