/* NEON is there on every AArch64 CPU: there is nothing to turn on. */
#ifndef ATTN_ISA_NEON_H
#define ATTN_ISA_NEON_H

#include "isa/begin.h"

#endif
