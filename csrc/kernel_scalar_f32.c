/* The kernel for float with plain C. */
#include "kernel_begin.h"

#define KERNEL attn_kernel_scalar_f32
#define REAL_BITS 32
#define PANEL_ROWS 4
#define TILE_VECTORS 8
#include "vec/scalar_f32.h"

#include "kernel.inc.h"
