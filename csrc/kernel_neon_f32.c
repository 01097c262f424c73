/* The kernel for float with NEON, which every AArch64 CPU has. */
#include "kernel_begin.h"

#if defined(__aarch64__)

#define KERNEL attn_kernel_neon_f32
#define REAL_BITS 32
#define PANEL_ROWS 6
#define TILE_VECTORS 4
#include "vec/neon_f32.h"

#include "kernel.inc.h"

#endif
