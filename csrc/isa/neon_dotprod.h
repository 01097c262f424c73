/* Turns on the dot products of NEON, FEAT_DotProd, for the functions that follow. */
#ifndef ATTN_ISA_NEON_DOTPROD_H
#define ATTN_ISA_NEON_DOTPROD_H

#include "isa/begin.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

#endif
