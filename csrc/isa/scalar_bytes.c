/* The kernel of attention over bytes with plain C. */
#include "isa/scalar_int8.h"

#include "kernel/bytes/kernel.h"
