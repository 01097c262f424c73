/* The functions for float with plain C. */
#include "isa/scalar_f32.h"

#define FUNCTIONS functions_scalar_f32
#define TIER "scalar"
#include "support/functions_table.h"
