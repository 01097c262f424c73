/* Plain C for the functions that follow. */
#ifndef ATTN_ISA_SCALAR_H
#define ATTN_ISA_SCALAR_H

#include "isa/begin.h"

/* Nothing is in registers either. */
#undef UNROLLED
#define UNROLLED

#endif
