/* The kernel of attention over bytes with AVX512-VNNI. */
#if defined(__x86_64__)
#include "isa/avx512_vnni_int8.h"

#include "kernel/bytes/kernel.h"

#include "isa/end.h"
#endif
