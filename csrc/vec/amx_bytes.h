/* The vocabulary of products of digits and bytes with AMX-INT8, beside that of AVX512-VNNI: tiles
 * of 16 rows of 64 bytes. Source: Intel 64 and IA-32 Architectures Software Developer's Manual,
 * volume 1, chapter 18, and volume 2, TDPBSSD. */
#include "vec/amx.h"

enum {
    UNIT_ROWS = 16,  /* of a tile, whose rows have as many lanes of sums */
    UNIT_BYTES = 64, /* of a row, at most */
    UNIT_DIGITS = 2, /* of a code */
    UNIT_SUMS_ROW = UNIT_DIGITS * UNIT_ROWS /* sums from row to row */
};

/* Tiles for `step` bytes of a row at a time, a multiple of 4: 0 to 3 are sums, 4 and 5 bytes, 6
 * and 7 digits. They are this thread's until u_end. */
static inline void u_begin(int step)
{
    unit_tiles tiles = {.palette = 1};

    for (int tile = 0; tile < 8; tile++) {
        tiles.row_bytes[tile] = (uint16_t)(tile / 2 == 2 ? step : UNIT_BYTES);
        tiles.rows[tile] = (uint8_t)(tile / 2 == 3 ? step / 4 : UNIT_ROWS);
    }
    u_configure(&tiles);
}

/* There are two sets of sums: one is stored while products are added to the other. */
static inline void u_clear(const bool other)
{
    if (other) {
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
}

/* sums += UNIT_ROWS rows of bytes times quads of high and of low digits, by turns `line` bytes
 * apart. */
static inline void u_multiply(const int8_t *bytes, ptrdiff_t row, const char *digits,
                              ptrdiff_t line, const bool other)
{
    if (other) {
        _tile_loadd(5, bytes, row);
        _tile_loadd(6, digits, 2 * line);
        _tile_dpbssd(2, 5, 6);
        _tile_loadd(7, digits + line, 2 * line);
        _tile_dpbssd(3, 5, 7);
    } else {
        _tile_loadd(4, bytes, row);
        _tile_loadd(6, digits, 2 * line);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, digits + line, 2 * line);
        _tile_dpbssd(1, 4, 7);
    }
}

/* sums: (UNIT_ROWS, UNIT_DIGITS, UNIT_ROWS). */
static inline void u_store(int32_t *sums, const bool other)
{
    if (other) {
        _tile_stored(2, sums, 4 * UNIT_SUMS_ROW);
        _tile_stored(3, sums + UNIT_ROWS, 4 * UNIT_SUMS_ROW);
    } else {
        _tile_stored(0, sums, 4 * UNIT_SUMS_ROW);
        _tile_stored(1, sums + UNIT_ROWS, 4 * UNIT_SUMS_ROW);
    }
}

/* Sums of codes, from those of their digits. */
static inline v_sums v_load_digit_sums(const int32_t *sums)
{
    __m512i high = _mm512_slli_epi32(_mm512_loadu_si512(sums), 8);
    return _mm512_add_epi32(high, _mm512_loadu_si512(sums + UNIT_ROWS));
}

/* 16 bytes, and 16 others. */
static inline v_narrow v_load_halves(const int8_t *low, const int8_t *high)
{
    __m128i first = _mm_loadu_si128((const __m128i *)(const void *)low);
    __m128i second = _mm_loadu_si128((const __m128i *)(const void *)high);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
}

/* Byte i of each half of vector j changes place with byte j of vector i: each round turns the
 * eight bits of a byte's place around by one. Short vectors have two units for this. */
static inline void v_turn_bytes(v_narrow a[16])
{
    UNROLLED for (int round = 0; round < 4; round++)
    {
        v_narrow b[16];
        UNROLLED for (int i = 0; i < 8; i++)
        {
            b[2 * i] = _mm256_unpacklo_epi8(a[i], a[i + 8]);
            b[2 * i + 1] = _mm256_unpackhi_epi8(a[i], a[i + 8]);
        }
        memcpy(a, b, sizeof b);
    }
}

/* Stores the first n bytes, of which there may be none, and zeros in place of the others. */
static inline void v_store_some(int8_t *p, v_narrow a, ptrdiff_t n)
{
    uint32_t keep = n >= 32 ? UINT32_MAX : n > 0 ? (UINT32_C(1) << n) - 1 : 0;
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_maskz_mov_epi8(keep, a));
}
