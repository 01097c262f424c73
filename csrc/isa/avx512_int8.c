/* The kernel for products of integers with AVX-512. */
#if defined(__x86_64__)
#include "isa/avx512_int8.h"

#include "kernel/integer/kernel.h"

#include "isa/end.h"
#endif
