/* The kernel for float with NEON, which every AArch64 CPU has. */
#include "kernel_begin.h"

#if defined(__aarch64__)

#define KERNEL attn_kernel_neon_f32
#define REAL_BITS 32
/* 16 sums keep the pipes busy, and stay in registers; 24 did not with GCC 12. */
#define PANEL_ROWS 4
#define TILE_VECTORS 4
#include "vec/neon_f32.h"

#include "kernel.inc.h"

#endif
