/* The kernel for products of integers with NEON. */
#if defined(__aarch64__)
#include "isa/neon_int8.h"

#include "kernel/integer/kernel.h"
#endif
