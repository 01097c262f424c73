/* Products of integers with AMX-INT8: its vocabularies. */
#ifndef ATTN_ISA_AMX_INT8_H
#define ATTN_ISA_AMX_INT8_H

#include "isa/amx.h"

#define INTEGER_UNIT attn_integer_unit_amx
#include "vec/avx512_f32.h"

#include "vec/amx_int8.h"

#endif
