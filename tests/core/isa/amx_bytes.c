/* Attention over bytes with AMX-INT8, whose tiles are in plain C: it runs on each CPU with
 * AVX512-VNNI. */
#include "support/tiles.h"

#if defined(__x86_64__) && defined(__linux__)
#include "isa/avx512_vnni.h"

#include "support/tiles_in_c.h"

#define BYTE_UNIT byte_unit_of_tiles
#define BYTE_PANEL 2
#define BYTE_VECTORS 1
#include "vec/avx512_f32.h"

#include "vec/avx512_vnni_shorts.h"

#include "vec/amx_bytes.h"

#include "kernel/bytes/unit.h"

#include "isa/end.h"
#endif
