/* The functions for float with NEON. */
#if defined(__aarch64__)
#include "isa/neon_f32.h"

#define FUNCTIONS functions_neon_f32
#define TIER "neon"
#include "support/functions_table.h"
#endif
