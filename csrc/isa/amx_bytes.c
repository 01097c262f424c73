/* Attention over bytes with AMX-INT8, for the kernel with AVX512-VNNI. */
#if defined(__x86_64__) && defined(__linux__)
#include "isa/amx_bytes.h"

#include "kernel/bytes/unit.h"

#include "isa/end.h"
#endif
