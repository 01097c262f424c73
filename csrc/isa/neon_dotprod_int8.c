/* The kernel for products of integers with the dot products of NEON. */
#if defined(__aarch64__)
#include "isa/neon_dotprod_int8.h"

#include "kernel/integer/kernel.h"

#include "isa/end.h"
#endif
