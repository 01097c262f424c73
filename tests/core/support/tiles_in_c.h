/* The intrinsics of AMX in plain C, in place of the compiler's: kernels that are written with
 * them run on every CPU. Include it behind immintrin.h. Source: Intel 64 and IA-32
 * Architectures Software Developer's Manual, volume 2. Only what kernels use is here, and what
 * they must not do ends the program. */
#ifndef SUPPORT_TILES_IN_C_H
#define SUPPORT_TILES_IN_C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { N_TILES = 8, TILE_ROWS = 16, TILE_BYTES = 64 };

typedef struct {
    int rows, row_bytes;
    uint8_t bytes[TILE_ROWS][TILE_BYTES];
} plain_tile;

static _Thread_local plain_tile plain_tiles[N_TILES];
static _Thread_local bool tiles_are_there;

static inline plain_tile *
tile_at(int number)
{
    if (!tiles_are_there || plain_tiles[number].rows == 0) {
        abort();
    }
    return &plain_tiles[number];
}

/* All tiles are zero then. Rows and columns are within a tile. */
static inline void
tiles_begin(const void *at)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config;

    memcpy(&config, at, sizeof config);
    if (config.palette != 1 || config.start_row != 0) {
        abort();
    }
    memset(plain_tiles, 0, sizeof plain_tiles);
    for (int i = 0; i < N_TILES; i++) {
        plain_tiles[i].rows = config.rows[i];
        plain_tiles[i].row_bytes = config.row_bytes[i];
        if (plain_tiles[i].rows > TILE_ROWS || plain_tiles[i].row_bytes > TILE_BYTES ||
            plain_tiles[i].row_bytes % 4 != 0) {
            abort();
        }
    }
    tiles_are_there = true;
}

static inline void
tiles_end(void)
{
    tiles_are_there = false;
}

static inline void
tile_clear(int number)
{
    memset(tile_at(number)->bytes, 0, sizeof plain_tiles->bytes);
}

static inline void
tile_load(int number, const void *from, ptrdiff_t row)
{
    plain_tile *t = tile_at(number);

    tile_clear(number);
    for (int i = 0; i < t->rows; i++) {
        memcpy(t->bytes[i], (const char *)from + i * row, (size_t)t->row_bytes);
    }
}

static inline void
tile_store(int number, void *to, ptrdiff_t row)
{
    const plain_tile *t = tile_at(number);

    for (int i = 0; i < t->rows; i++) {
        memcpy((char *)to + i * row, t->bytes[i], (size_t)t->row_bytes);
    }
}

/* sums += a b, signed bytes in fours; the tiles' sizes must fit together. */
static inline void
tile_multiply_bytes(int sums, int a, int b)
{
    plain_tile *c = tile_at(sums), *x = tile_at(a), *w = tile_at(b);

    if (c->rows != x->rows || c->row_bytes != w->row_bytes ||
        x->row_bytes != 4 * w->rows) {
        abort();
    }
    for (int i = 0; i < c->rows; i++) {
        for (int j = 0; j < c->row_bytes / 4; j++) {
            int32_t sum;
            memcpy(&sum, c->bytes[i] + 4 * j, sizeof sum);
            for (int k = 0; k < x->row_bytes; k++) {
                sum += (int8_t)x->bytes[i][k] * (int8_t)w->bytes[k / 4][4 * j + k % 4];
            }
            memcpy(c->bytes[i] + 4 * j, &sum, sizeof sum);
        }
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#define _tile_loadconfig tiles_begin
#define _tile_release tiles_end
#define _tile_zero tile_clear
#define _tile_loadd tile_load
#define _tile_stored tile_store
#define _tile_dpbssd tile_multiply_bytes

#endif
