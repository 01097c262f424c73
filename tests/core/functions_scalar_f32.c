/* The functions for float with plain C. */
#include "kernel_begin.h"

#define FUNCTIONS functions_scalar_f32
#define TIER "scalar"
#define REAL_BITS 32
#include "vec/scalar_f32.h"

#include "functions.inc.h"
