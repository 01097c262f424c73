/* Products of integers with AMX-INT8, for the kernel with AVX512-VNNI. */
#if defined(__x86_64__) && defined(__linux__)
#include "isa/amx_int8.h"

#include "kernel/integer/unit.h"

#include "isa/end.h"
#endif
