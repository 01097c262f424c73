/* The kernel of attention over bytes with NEON. */
#if defined(__aarch64__)
#include "isa/neon_int8.h"

#include "kernel/bytes/kernel.h"
#endif
