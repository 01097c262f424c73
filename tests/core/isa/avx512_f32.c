/* The functions for float with AVX-512. */
#if defined(__x86_64__)
#include "isa/avx512_f32.h"

#define FUNCTIONS functions_avx512_f32
#define TIER "avx512"
#include "support/functions_table.h"

#include "isa/end.h"
#endif
