/* What the vocabularies of AMX share: tiles of up to 16 rows of 64 bytes, which a thread takes and
 * gives back. */
#ifndef ATTN_VEC_AMX_H
#define ATTN_VEC_AMX_H

/* The sizes of tiles, as LDTILECFG reads them; the palette is 1. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} unit_tiles;

/* Between writing memory and reading it into tiles: compilers do not know that tiles are read
 * from memory, nor how much of a configuration is. */
static inline void u_publish(const void *at)
{
    __asm__ volatile("" : : "r"(at) : "memory");
}

/* Makes tiles of these sizes, which are this thread's until u_end. */
static inline void u_configure(const unit_tiles *tiles)
{
    u_publish(tiles);
    _tile_loadconfig(tiles);
}

static inline void u_end(void) { _tile_release(); }

#endif
