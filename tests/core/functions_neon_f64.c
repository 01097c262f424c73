/* double with NEON. */
#include "kernel_begin.h"

#if defined(__aarch64__)

#define FUNCTIONS functions_neon_f64
#define TIER "neon"
#define REAL_BITS 64
#include "vec/neon_f64.h"

#include "functions.inc.h"

#endif
