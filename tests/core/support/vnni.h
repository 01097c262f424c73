/* The kernel for AVX-VNNI, for CPUs with AVX512-VNNI. */
#ifndef SUPPORT_VNNI_H
#define SUPPORT_VNNI_H

#include "core/tiers.h"

/* Makes the tier that has AVX2, and this kernel for products of integers; NULL where the CPU lacks
 * either. */
const attn_tier *tier_with_vnni(attn_tier *);

#endif
