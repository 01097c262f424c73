/* The functions for double with AVX-512. */
#if defined(__x86_64__)
#include "isa/avx512_f64.h"

#define FUNCTIONS functions_avx512_f64
#define TIER "avx512"
#include "support/functions_table.h"

#include "isa/end.h"
#endif
