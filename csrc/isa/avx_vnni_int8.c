/* The kernel for products of integers with AVX-VNNI. */
#if defined(__x86_64__)
#include "isa/avx_vnni_int8.h"

#include "kernel/integer/kernel.h"

#include "isa/end.h"
#endif
