/* The functions for float with AVX2. */
#if defined(__x86_64__)
#include "isa/avx2_f32.h"

#define FUNCTIONS functions_avx2_f32
#define TIER "avx2"
#include "support/functions_table.h"

#include "isa/end.h"
#endif
