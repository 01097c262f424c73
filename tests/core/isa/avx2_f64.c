/* The functions for double with AVX2. */
#if defined(__x86_64__)
#include "isa/avx2_f64.h"

#define FUNCTIONS functions_avx2_f64
#define TIER "avx2"
#include "support/functions_table.h"

#include "isa/end.h"
#endif
