/* What AMX adds to the vocabulary of bfloat16: a matrix unit, with tiles of 16 rows of 64
 * bytes. Its sums are rounded to nearest, and subnormal numbers count as 0. Source: Intel 64
 * and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and volume 2,
 * TDPBF16PS. */
#include "vec/amx.h"

#define MATRIX_UNIT 1

enum {
    UNIT_ROWS = 16,   /* of a tile */
    UNIT_LANES = 16,  /* floats, or pairs of bfloat16 numbers, of a row */
    UNIT_TERMS = 32,  /* of a sum that one instruction adds up */
    UNIT_COLUMNS = 3, /* tiles of sums side by side; there are two rows of them */
};

/* Makes tiles of sums, and of x, `rows` high: fewer than UNIT_ROWS where there is no second
 * row of tiles. Tiles are this thread's until u_end. */
static inline void u_begin(int rows)
{
    unit_tiles tiles = {.palette = 1};

    for (int tile = 0; tile < 8; tile++) {
        tiles.row_bytes[tile] = 64;
        tiles.rows[tile] = (uint8_t)(tile < 3 || tile == 6 ? rows : UNIT_ROWS);
    }
    u_configure(&tiles);
}

static inline void u_clear(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
}

/* The sums of one row of tiles or of two, `row` bytes from row to row. */
static inline void u_load(const float *sums, ptrdiff_t row, const bool two)
{
    const char *next = (const char *)sums + UNIT_ROWS * row;

    _tile_loadd(0, sums, row);
    _tile_loadd(1, sums + UNIT_LANES, row);
    _tile_loadd(2, sums + 2 * UNIT_LANES, row);
    if (two) {
        _tile_loadd(3, next, row);
        _tile_loadd(4, next + 64, row);
        _tile_loadd(5, next + 128, row);
    }
}

static inline void u_store(float *sums, ptrdiff_t row, const bool two)
{
    char *next = (char *)sums + UNIT_ROWS * row;

    _tile_stored(0, sums, row);
    _tile_stored(1, sums + UNIT_LANES, row);
    _tile_stored(2, sums + 2 * UNIT_LANES, row);
    if (two) {
        _tile_stored(3, next, row);
        _tile_stored(4, next + 64, row);
        _tile_stored(5, next + 128, row);
    }
}

/* sums += x W, for UNIT_TERMS numbers of rows of x, and as many rows of W in pairs. One row of
 * tiles waits for W: its tiles are those that sums leave. */
static inline void u_multiply(const uint16_t *x, ptrdiff_t x_row, const char *w,
                              ptrdiff_t w_row, const bool two)
{
    const char *next = (const char *)x + UNIT_ROWS * x_row;

    _tile_loadd(6, x, x_row);
    if (!two) {
        _tile_loadd(3, w, w_row);
        _tile_loadd(4, w + 64, w_row);
        _tile_loadd(5, w + 128, w_row);
        _tile_dpbf16ps(0, 6, 3);
        _tile_dpbf16ps(1, 6, 4);
        _tile_dpbf16ps(2, 6, 5);
        return;
    }
    _tile_loadd(7, w, w_row);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, next, x_row);
    _tile_dpbf16ps(3, 6, 7);
    _tile_loadd(7, w + 64, w_row);
    _tile_dpbf16ps(4, 6, 7);
    _tile_loadd(6, x, x_row);
    _tile_dpbf16ps(1, 6, 7);
    _tile_loadd(7, w + 128, w_row);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(6, next, x_row);
    _tile_dpbf16ps(5, 6, 7);
}
