/* Attention over bytes with AMX-INT8: tiles and vocabularies. */
#ifndef ATTN_ISA_AMX_BYTES_H
#define ATTN_ISA_AMX_BYTES_H

#include "isa/amx.h"

#define BYTE_UNIT attn_byte_unit_amx
#define BYTE_PANEL 2
#define BYTE_VECTORS 1
#include "vec/avx512_f32.h"

#include "vec/avx512_vnni_shorts.h"

#include "vec/amx_bytes.h"

#endif
