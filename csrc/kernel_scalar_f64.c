/* The kernel for double with plain C. */
#include "kernel_begin.h"

#define KERNEL attn_kernel_scalar_f64
#define REAL_BITS 64
#define PANEL_ROWS 4
#define TILE_VECTORS 8
#include "vec/scalar_f64.h"

#include "kernel.inc.h"
