/* Keys and values that lie in pages, as a cache that grows by pages keeps them. A page has the
 * rows of ATTN_BLOCK keys one behind the other, those from a multiple of ATTN_BLOCK on: as the
 * kernel takes keys in blocks at these positions, a block never lies in two pages. */
#ifndef ATTN_CORE_PAGES_H
#define ATTN_CORE_PAGES_H

#include <stddef.h>

struct attn_pages {
    const ptrdiff_t *rows; /* (B, n) the row of key and value where a page begins */
    ptrdiff_t n;           /* pages of a batch: Lk / ATTN_BLOCK, rounded up */
};

#endif
