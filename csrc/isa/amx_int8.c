/* The kernel for products of integers with AMX-INT8. */
#if defined(__x86_64__) && defined(__linux__)
#include "isa/amx_int8.h"

#include "kernel/integer/kernel.h"

#include "isa/end.h"
#endif
