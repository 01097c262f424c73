/* A matrix unit whose tiles are in plain C. */
#ifndef SUPPORT_TILES_H
#define SUPPORT_TILES_H

#include "core/tiers.h"

/* Makes the tier that has AVX512-VNNI, and the tiles for products of integers; NULL where the CPU
 * lacks the former. */
const attn_tier *tier_with_tiles(attn_tier *);

#endif
