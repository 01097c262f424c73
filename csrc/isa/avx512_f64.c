/* The kernel for double with AVX-512. */
#if defined(__x86_64__)
#include "isa/avx512_f64.h"

#include "kernel/kernel.h"

#include "isa/end.h"
#endif
