/* The kernel for double with plain C. */
#include "isa/scalar_f64.h"

#include "kernel/kernel.h"
