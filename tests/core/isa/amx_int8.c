/* Products of integers with AMX-INT8, whose tiles are in plain C: they run on each CPU with
 * AVX512-VNNI. */
#include "support/tiles.h"

#if defined(__x86_64__) && defined(__linux__)
#include "isa/avx512_vnni.h"

#include "support/tiles_in_c.h"

#define INTEGER_UNIT integer_unit_of_tiles
#include "vec/avx512_f32.h"

#include "vec/amx_int8.h"

#include "kernel/integer/unit.h"

#include "isa/end.h"

const attn_tier *
tier_with_tiles(attn_tier *tier)
{
    const attn_tier *vnni = attn_tier_named("avx512_vnni");

    if (vnni == NULL) {
        return NULL;
    }
    *tier = *vnni;
    tier->integer_unit = integer_unit_of_tiles;
    tier->byte_unit = &byte_unit_of_tiles;
    return tier;
}
#else
const attn_tier *
tier_with_tiles(attn_tier *tier)
{
    (void)tier;
    return NULL;
}
#endif
