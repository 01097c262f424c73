/* float with NEON. */
#include "kernel_begin.h"

#if defined(__aarch64__)

#define FUNCTIONS functions_neon_f32
#define TIER "neon"
#define REAL_BITS 32
#include "vec/neon_f32.h"

#include "functions.inc.h"

#endif
