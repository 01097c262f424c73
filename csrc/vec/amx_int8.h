/* The vocabulary of integer products with AMX-INT8: that of AVX512-VNNI, and a matrix unit,
 * whose tiles have 16 rows of 64 bytes. The unit multiplies signed bytes by signed ones, so that
 * codes wait for it as they are. Source: Intel 64 and IA-32 Architectures Software Developer's
 * Manual, volume 1, chapter 18, and volume 2, TDPBSSD. */
#include "vec/amx.h"
#include "vec/avx512_vnni_int8.h"

enum {
    UNIT_SUMS = 3 * 16,             /* columns of sums: three tiles side by side */
    UNIT_SUMS_ROW = UNIT_SUMS * 4,  /* bytes from row to row of the sums in memory, */
    UNIT_CODES_ROW = UNIT_SUMS_ROW, /* and of quads of codes */
};

/* Stores codes less `zero`, signed. */
static inline void u_store_codes(code *p, v_codes codes, int zero)
{
    _mm512_storeu_si512(p, _mm512_sub_epi8(codes, _mm512_set1_epi8((char)zero)));
}

/* Products are of so many rows of x with `step` terms at a time, a multiple of 4. Tiles 0 to 2 and
 * 5 to 7 are sums, 3 is of x, 4 of W. They are this thread's until u_end. */
static inline void u_begin(int rows, int step)
{
    unit_tiles tiles = {.palette = 1};

    for (int tile = 0; tile < 8; tile++) {
        tiles.row_bytes[tile] = (uint16_t)(tile == 3 ? step : 64);
        tiles.rows[tile] = (uint8_t)(tile == 4 ? step / 4 : rows);
    }
    u_configure(&tiles);
}

/* There are two sets of sums: one is stored while products are added to the other. */
static inline void u_clear(const bool other)
{
    if (other) {
        _tile_zero(5);
        _tile_zero(6);
        _tile_zero(7);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
    }
}

/* sums += x W of a step. x: (rows, x_row); w: quads, (step / 4, UNIT_CODES_ROW). */
static inline void u_multiply(const term *x, ptrdiff_t x_row, const code *w,
                              const bool other)
{
    _tile_loadd(3, x, x_row);
    if (other) {
        _tile_loadd(4, w, UNIT_CODES_ROW);
        _tile_dpbssd(5, 3, 4);
        _tile_loadd(4, w + 64, UNIT_CODES_ROW);
        _tile_dpbssd(6, 3, 4);
        _tile_loadd(4, w + 128, UNIT_CODES_ROW);
        _tile_dpbssd(7, 3, 4);
    } else {
        _tile_loadd(4, w, UNIT_CODES_ROW);
        _tile_dpbssd(0, 3, 4);
        _tile_loadd(4, w + 64, UNIT_CODES_ROW);
        _tile_dpbssd(1, 3, 4);
        _tile_loadd(4, w + 128, UNIT_CODES_ROW);
        _tile_dpbssd(2, 3, 4);
    }
}

/* sums: (rows, UNIT_SUMS). */
static inline void u_store(int32_t *sums, const bool other)
{
    if (other) {
        _tile_stored(5, sums, UNIT_SUMS_ROW);
        _tile_stored(6, sums + 16, UNIT_SUMS_ROW);
        _tile_stored(7, sums + 32, UNIT_SUMS_ROW);
    } else {
        _tile_stored(0, sums, UNIT_SUMS_ROW);
        _tile_stored(1, sums + 16, UNIT_SUMS_ROW);
        _tile_stored(2, sums + 32, UNIT_SUMS_ROW);
    }
}

/* LANES of these sums. */
static inline v_dots v_load_dots(const int32_t *p) { return _mm512_loadu_si512(p); }
