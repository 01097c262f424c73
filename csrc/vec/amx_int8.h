/* The vocabulary of integer products with AMX-INT8: that of AVX512-VNNI, and a matrix unit,
 * whose tiles have 16 rows of 64 bytes. The unit multiplies signed bytes by signed ones, so that
 * codes wait for it as they are. Source: Intel 64 and IA-32 Architectures Software Developer's
 * Manual, volume 1, chapter 18, and volume 2, TDPBSSD. */
#include "vec/avx512_vnni_int8.h"

enum {
    UNIT_SUMS = 3 * 16,             /* columns of sums: three tiles side by side */
    UNIT_SUMS_ROW = UNIT_SUMS * 4,  /* bytes from row to row of the sums in memory, */
    UNIT_CODES_ROW = UNIT_SUMS_ROW, /* and of quads of codes */
    UNIT_NEXT = UNIT_ROWS * UNIT_SUMS, /* sums from one row of tiles to the next */
};

/* Stores codes less `zero`, signed. */
static inline void u_store_codes(code *p, v_codes codes, int zero)
{
    _mm512_storeu_si512(p, _mm512_sub_epi8(codes, _mm512_set1_epi8((char)zero)));
}

/* Between writing memory and reading it into tiles: compilers do not know that tiles are read
 * from memory, nor how much of a configuration is. */
static inline void u_publish(const void *at)
{
    __asm__ volatile("" : : "r"(at) : "memory");
}

/* Products are with `step` terms at a time, a multiple of 4. Tiles 0 to 5 are sums in two
 * rows, 6 is of x, 7 of W. They are this thread's until u_end. */
static inline void u_begin(int step)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};

    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = (uint16_t)(tile == 6 ? step : 64);
        config.rows[tile] = (uint8_t)(tile == 7 ? step / 4 : UNIT_ROWS);
    }
    u_publish(&config);
    _tile_loadconfig(&config);
}

static inline void u_end(void) { _tile_release(); }

static inline void u_clear(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
}

/* sums += x W of a step, for one row of tiles or two. x: (rows, x_row); w: quads, (step / 4,
 * UNIT_CODES_ROW). */
static inline void u_multiply(const term *x, ptrdiff_t x_row, const code *w,
                              const bool two)
{
    const term *next = x + UNIT_ROWS * x_row;

    _tile_loadd(6, x, x_row);
    _tile_loadd(7, w, UNIT_CODES_ROW);
    _tile_dpbssd(0, 6, 7);
    if (!two) {
        _tile_loadd(7, w + 64, UNIT_CODES_ROW);
        _tile_dpbssd(1, 6, 7);
        _tile_loadd(7, w + 128, UNIT_CODES_ROW);
        _tile_dpbssd(2, 6, 7);
        return;
    }
    _tile_loadd(6, next, x_row);
    _tile_dpbssd(3, 6, 7);
    _tile_loadd(7, w + 64, UNIT_CODES_ROW);
    _tile_dpbssd(4, 6, 7);
    _tile_loadd(6, x, x_row);
    _tile_dpbssd(1, 6, 7);
    _tile_loadd(7, w + 128, UNIT_CODES_ROW);
    _tile_dpbssd(2, 6, 7);
    _tile_loadd(6, next, x_row);
    _tile_dpbssd(5, 6, 7);
}

/* sums: (UNIT_ROWS, UNIT_SUMS), or twice as many rows. */
static inline void u_store(int32_t *sums, const bool two)
{
    int32_t *next = sums + UNIT_NEXT;

    _tile_stored(0, sums, UNIT_SUMS_ROW);
    _tile_stored(1, sums + 16, UNIT_SUMS_ROW);
    _tile_stored(2, sums + 32, UNIT_SUMS_ROW);
    if (two) {
        _tile_stored(3, next, UNIT_SUMS_ROW);
        _tile_stored(4, next + 16, UNIT_SUMS_ROW);
        _tile_stored(5, next + 32, UNIT_SUMS_ROW);
    }
    u_publish(sums);
}

/* LANES of these sums. */
static inline v_dots v_load_dots(const int32_t *p) { return _mm512_loadu_si512(p); }
