/* The kernel for products of integers with AVX2. */
#if defined(__x86_64__)
#include "isa/avx2_int8.h"

#include "kernel/integer/kernel.h"

#include "isa/end.h"
#endif
