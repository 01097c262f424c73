/* A matrix unit whose tiles are in plain C. */
#ifndef SUPPORT_TILES_H
#define SUPPORT_TILES_H

#include "core/tiers.h"

/* For attention over bytes; only Linux has it, on x86-64. */
extern const attn_byte_unit byte_unit_of_tiles;

/* Makes the tier that has AVX512-VNNI, and the tiles for products of integers and for attention;
 * NULL where the CPU lacks the former. */
const attn_tier *tier_with_tiles(attn_tier *);

#endif
