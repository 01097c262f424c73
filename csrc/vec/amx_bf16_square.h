/* What else AMX adds to the vocabulary of bfloat16: products of up to two rows of tiles with up
 * to two columns of them, or of one with UNIT_LINE, whose sums are tiles of their own. All tiles
 * are whole: between u_begin(UNIT_ROWS) and u_end. */

enum { UNIT_LINE = 4 /* tiles of sums side by side */ };

/* For as many rows and columns of tiles as constants say. */
static inline void u_clear_square(const int rows, const int columns)
{
    _tile_zero(0);
    if (rows > 1) {
        _tile_zero(1);
    }
    if (columns > 1) {
        _tile_zero(2);
        if (rows > 1) {
            _tile_zero(3);
        }
    }
}

/* The sums, `row` bytes from row to row. */
static inline void u_load_square(const float *sums, ptrdiff_t row, const int rows,
                                 const int columns)
{
    const char *next = (const char *)sums + UNIT_ROWS * row;

    _tile_loadd(0, sums, row);
    if (rows > 1) {
        _tile_loadd(1, next, row);
    }
    if (columns > 1) {
        _tile_loadd(2, sums + UNIT_LANES, row);
        if (rows > 1) {
            _tile_loadd(3, next + 64, row);
        }
    }
}

static inline void u_store_square(float *sums, ptrdiff_t row, const int rows,
                                  const int columns)
{
    char *next = (char *)sums + UNIT_ROWS * row;

    _tile_stored(0, sums, row);
    if (rows > 1) {
        _tile_stored(1, next, row);
    }
    if (columns > 1) {
        _tile_stored(2, sums + UNIT_LANES, row);
        if (rows > 1) {
            _tile_stored(3, next + 64, row);
        }
    }
}

enum { UNIT_QUARTERS = 4 };

/* The part of u_multiply_square that is added to one of the tiles of sums; parts come in
 * order. */
static inline void u_multiply_quarter(const int quarter, const char *a, ptrdiff_t a_row,
                                      ptrdiff_t a_tile, const char *b, ptrdiff_t b_row,
                                      const int rows, const int columns)
{
    if (quarter == 0) {
        _tile_loadd(6, b, b_row);
        _tile_loadd(4, a, a_row);
        _tile_dpbf16ps(0, 4, 6);
    } else if (quarter == 1 && rows > 1) {
        _tile_loadd(5, a + a_tile, a_row);
        _tile_dpbf16ps(1, 5, 6);
    } else if (quarter == 2 && columns > 1) {
        _tile_loadd(7, b + 64, b_row);
        _tile_dpbf16ps(2, 4, 7);
    } else if (quarter == 3 && rows > 1 && columns > 1) {
        _tile_dpbf16ps(3, 5, 7);
    }
}

/* sums += a b, for UNIT_TERMS numbers of each row of a, whose second row of tiles is a_tile
 * bytes behind the first, and as many rows of b in pairs. */
static inline void u_multiply_square(const char *a, ptrdiff_t a_row, ptrdiff_t a_tile,
                                     const char *b, ptrdiff_t b_row, const int rows,
                                     const int columns)
{
    UNROLLED for (int i = 0; i < UNIT_QUARTERS; i++)
    {
        u_multiply_quarter(i, a, a_row, a_tile, b, b_row, rows, columns);
    }
}

static inline void u_clear_line(void) { u_clear_square(2, 2); }

static inline void u_store_line(float *sums, ptrdiff_t row)
{
    _tile_stored(0, sums, row);
    _tile_stored(1, sums + UNIT_LANES, row);
    _tile_stored(2, sums + 2 * UNIT_LANES, row);
    _tile_stored(3, sums + 3 * UNIT_LANES, row);
}

/* As u_multiply_square, for one row of tiles. */
static inline void u_multiply_line(const char *a, ptrdiff_t a_row, const char *b,
                                   ptrdiff_t b_row)
{
    _tile_loadd(4, a, a_row);
    _tile_loadd(5, b, b_row);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, b + 64, b_row);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, b + 128, b_row);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, b + 192, b_row);
    _tile_dpbf16ps(3, 4, 5);
}
