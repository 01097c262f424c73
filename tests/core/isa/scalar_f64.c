/* The functions for double with plain C. */
#include "isa/scalar_f64.h"

#define FUNCTIONS functions_scalar_f64
#define TIER "scalar"
#include "support/functions_table.h"
