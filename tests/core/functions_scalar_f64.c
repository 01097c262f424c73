/* The functions for double with plain C. */
#include "kernel_begin.h"

#define FUNCTIONS functions_scalar_f64
#define TIER "scalar"
#define REAL_BITS 64
#include "vec/scalar_f64.h"

#include "functions.inc.h"
