/* The kernel for float with plain C. */
#include "isa/scalar_f32.h"

#include "kernel/kernel.h"
