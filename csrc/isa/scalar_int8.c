/* The kernel for products of integers with plain C. */
#include "isa/scalar_int8.h"

#include "kernel/integer/kernel.h"
