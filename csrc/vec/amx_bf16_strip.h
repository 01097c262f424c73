/* What else AMX adds to the vocabulary of bfloat16: products of rows with a column of tiles, whose
 * UNIT_STRIP tiles of sums are below each other. */

enum { UNIT_STRIP = 4 };

/* Makes tiles for products with a single number, or pair, in each row of the column. */
static inline void u_begin_single(void)
{
    unit_tiles tiles = {.palette = 1};

    for (int tile = 0; tile < 8; tile++) {
        tiles.row_bytes[tile] = tile == 4 || tile == 5 ? 64 : 4;
        tiles.rows[tile] = UNIT_ROWS;
    }
    u_configure(&tiles);
}

static inline void u_clear_strip(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static inline void u_store_strip(float *sums, ptrdiff_t row)
{
    char *at = (char *)sums;

    _tile_stored(0, at, row);
    _tile_stored(1, at + UNIT_ROWS * row, row);
    _tile_stored(2, at + 2 * UNIT_ROWS * row, row);
    _tile_stored(3, at + 3 * UNIT_ROWS * row, row);
    u_publish(sums);
}

/* The tiles of a strip's column: UNIT_TERMS rows of b in pairs or, if `two`, twice as many, whose
 * second tile is b_tile bytes behind the first. */
static inline void u_load_strip(const char *b, ptrdiff_t b_row, ptrdiff_t b_tile,
                                const bool two)
{
    _tile_loadd(6, b, b_row);
    if (two) {
        _tile_loadd(7, b + b_tile, b_row);
    }
}

/* sums of tile i += a b, for UNIT_ROWS rows of a with as many numbers as b has rows. Tiles of a
 * take turns. */
static inline void u_multiply_strip(const int i, const char *a, ptrdiff_t a_row,
                                    const bool two)
{
    if (two || i % 2 == 0) {
        _tile_loadd(4, a, a_row);
    }
    if (two || i % 2 == 1) {
        _tile_loadd(5, two ? a + 64 : a, a_row);
    }
    if (i == 0) {
        _tile_dpbf16ps(0, 4, 6);
    } else if (i == 2) {
        _tile_dpbf16ps(2, 4, 6);
    } else if (i == 1 && two) {
        _tile_dpbf16ps(1, 4, 6);
    } else if (i == 1) {
        _tile_dpbf16ps(1, 5, 6);
    } else if (two) {
        _tile_dpbf16ps(3, 4, 6);
    } else {
        _tile_dpbf16ps(3, 5, 6);
    }
    if (two && i == 0) {
        _tile_dpbf16ps(0, 5, 7);
    } else if (two && i == 1) {
        _tile_dpbf16ps(1, 5, 7);
    } else if (two && i == 2) {
        _tile_dpbf16ps(2, 5, 7);
    } else if (two) {
        _tile_dpbf16ps(3, 5, 7);
    }
}
