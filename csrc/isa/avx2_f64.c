/* The kernel for double with AVX2. */
#if defined(__x86_64__)
#include "isa/avx2_f64.h"

#include "kernel/kernel.h"

#include "isa/end.h"
#endif
