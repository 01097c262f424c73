/* The functions for double with NEON. */
#if defined(__aarch64__)
#include "isa/neon_f64.h"

#define FUNCTIONS functions_neon_f64
#define TIER "neon"
#include "support/functions_table.h"
#endif
