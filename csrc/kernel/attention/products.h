/* Which products attention has: by vectors, or on a matrix unit. */
#ifndef ATTN_KERNEL_ATTENTION_PRODUCTS_H
#define ATTN_KERNEL_ATTENTION_PRODUCTS_H

#ifdef MATRIX_UNIT

#include "kernel/attention/unit_row_scores.h"
#include "kernel/attention/unit_row_values.h"
#include "kernel/attention/unit_tiles.h"

/* What comes between these two has the unit's tiles. */
static INLINE void
begin_products(void)
{
    u_begin(UNIT_ROWS);
}

static INLINE void
end_products(void)
{
    u_end();
}

#else

#include "kernel/attention/row_products.h"
#include "kernel/attention/tile_products.h"

static INLINE void
begin_products(void)
{
}

static INLINE void
end_products(void)
{
}

#endif
#endif
