/* The kernel of attention over bytes with AVX2. */
#if defined(__x86_64__)
#include "isa/avx2_int8.h"

#include "kernel/bytes/kernel.h"

#include "isa/end.h"
#endif
