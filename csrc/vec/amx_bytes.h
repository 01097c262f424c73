/* The vocabulary of products of digits and bytes with AMX-INT8, beside that of AVX512-VNNI: tiles
 * of 16 rows of 64 bytes. Source: Intel 64 and IA-32 Architectures Software Developer's Manual,
 * volume 1, chapter 18, and volume 2, TDPBSSD. */
#include "vec/amx.h"

enum {
    UNIT_ROWS = 16,  /* of a tile, whose rows have as many lanes of sums */
    UNIT_BYTES = 64, /* of a row, at most */
    UNIT_TILE = UNIT_ROWS * UNIT_BYTES,
    UNIT_DIGITS = 2,                        /* of a code */
    UNIT_SUMS_ROW = UNIT_DIGITS * UNIT_ROWS /* sums from row to row */
};

/* Tiles for `step` bytes of a row at a time, a multiple of 4: 0 and 1 are sums of high and low
 * digits; 2 and 3 are bytes, 4 to 7 digits of two steps. They are this thread's until u_end. */
static inline void u_begin(int step)
{
    unit_tiles tiles = {.palette = 1};

    for (int tile = 0; tile < 8; tile++) {
        tiles.row_bytes[tile] = (uint16_t)(tile / 2 == 1 ? step : UNIT_BYTES);
        tiles.rows[tile] = (uint8_t)(tile / 4 == 1 ? step / 4 : UNIT_ROWS);
    }
    u_configure(&tiles);
}

/* Loads digits, the low ones `low` bytes after the high ones, and those of a second step
 * `step` bytes after the first, if there are two. */
static inline void u_load_digits(const char *digits, ptrdiff_t row, ptrdiff_t low,
                                 ptrdiff_t step, bool two)
{
    _tile_loadd(4, digits, row);
    _tile_loadd(5, digits + low, row);
    if (two) {
        _tile_loadd(6, digits + step, row);
        _tile_loadd(7, digits + step + low, row);
    }
}

static inline void u_clear(void)
{
    _tile_zero(0);
    _tile_zero(1);
}

/* sums: (UNIT_ROWS, UNIT_DIGITS, UNIT_ROWS). */
static inline void u_load(const int32_t *sums)
{
    _tile_loadd(0, sums, 4 * UNIT_SUMS_ROW);
    _tile_loadd(1, sums + UNIT_ROWS, 4 * UNIT_SUMS_ROW);
}

static inline void u_store(int32_t *sums)
{
    _tile_stored(0, sums, 4 * UNIT_SUMS_ROW);
    _tile_stored(1, sums + UNIT_ROWS, 4 * UNIT_SUMS_ROW);
}

/* Sums of rows of bytes and lanes of digits. */
static inline void u_add_rows(const int8_t *bytes, ptrdiff_t row, ptrdiff_t step,
                              bool two)
{
    _tile_loadd(2, bytes, row);
    _tile_dpbssd(0, 2, 4);
    _tile_dpbssd(1, 2, 5);
    if (two) {
        _tile_loadd(3, bytes + step, row);
        _tile_dpbssd(0, 3, 6);
        _tile_dpbssd(1, 3, 7);
    }
}

/* Sums of rows of digits and columns of bytes, whose tiles lie `step` bytes apart. */
static inline void u_add_columns(const char *bytes, ptrdiff_t step, bool two)
{
    _tile_loadd(2, bytes, UNIT_BYTES);
    _tile_dpbssd(0, 4, 2);
    _tile_dpbssd(1, 5, 2);
    if (two) {
        _tile_loadd(3, bytes + step, UNIT_BYTES);
        _tile_dpbssd(0, 6, 3);
        _tile_dpbssd(1, 7, 3);
    }
}

/* Sums of codes, from those of their digits. */
static inline v_sums v_load_digit_sums(const int32_t *sums)
{
    __m512i high = _mm512_slli_epi32(_mm512_loadu_si512(sums), 8);
    return _mm512_add_epi32(high, _mm512_loadu_si512(sums + UNIT_ROWS));
}

/* Zips the first n of 64 bytes of four rows, and zeros behind them. Quarter q of vector m then has
 * columns 16 q + 4 m to 16 q + 4 m + 3; vectors are UNIT_TILE bytes apart. */
static inline void v_store_zipped(char *to, const int8_t *const at[4], ptrdiff_t n)
{
    __mmask64 there = n >= UNIT_BYTES ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    v_shorts a = _mm512_maskz_loadu_epi8(there, at[0]);
    v_shorts b = _mm512_maskz_loadu_epi8(there, at[1]);
    v_shorts c = _mm512_maskz_loadu_epi8(there, at[2]);
    v_shorts d = _mm512_maskz_loadu_epi8(there, at[3]);
    v_shorts low = _mm512_unpacklo_epi8(a, b), low2 = _mm512_unpacklo_epi8(c, d);
    v_shorts high = _mm512_unpackhi_epi8(a, b), high2 = _mm512_unpackhi_epi8(c, d);
    v_store_shorts(to, _mm512_unpacklo_epi16(low, low2));
    v_store_shorts(to + UNIT_TILE, _mm512_unpackhi_epi16(low, low2));
    v_store_shorts(to + 2 * UNIT_TILE, _mm512_unpacklo_epi16(high, high2));
    v_store_shorts(to + 3 * UNIT_TILE, _mm512_unpackhi_epi16(high, high2));
}
