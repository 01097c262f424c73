/* The part of a block that the rows of a tile may see. */
#ifndef ATTN_KERNEL_ATTENTION_TILE_FORM_SPAN_H
#define ATTN_KERNEL_ATTENTION_TILE_FORM_SPAN_H

#include "core/tuning.h"
#include "kernel/attention/block.h"

/* The part of a block that rows of one tile may see: keys first .. first + n - 1, as
 * scores S[key][lane]. */
typedef struct {
    ptrdiff_t first;
    ptrdiff_t n;
    bool masked;                  /* is some key hidden from some row? */
    ptrdiff_t hidden, end_hidden; /* such keys lie in hidden .. end_hidden - 1 */
    ptrdiff_t narrow; /* the tile's first vector of rows sees no key from there on */
} span;

/* Bits first .. end - 1 of a word, for first < 64. */
static uint64_t
bits_between(ptrdiff_t first, ptrdiff_t end)
{
    uint64_t below_end = end < 64 ? (UINT64_C(1) << end) - 1 : ~UINT64_C(0);
    return below_end & ~UINT64_C(0) << first;
}

/* The bit behind the last that is set. */
static ptrdiff_t
end_of_bits(const uint64_t words[ATTN_BLOCK_WORDS])
{
    ptrdiff_t end = 0;

    for (int i = 0; i < ATTN_BLOCK_WORDS; i++) {
        if (words[i] != 0) {
            end = i * 64 + 64 - __builtin_clzll(words[i]);
        }
    }
    return end;
}

/* May the first vector of rows leave out keys? A product with one vector needs panels of 8 rows to keep
 * the multiply-add units busy. */
enum { NARROWS = PANEL_ROWS >= 8 && TILE_VECTORS == 2 && !HAS_UNIT };

/* Trims keys at both ends of the block that no row of the tile may see, SUM_TERMS at a
 * time. */
static span
tile_span(const task_rows *t, const block *b, int tile)
{
    ptrdiff_t n_keys = b->end - b->first;
    ptrdiff_t first = n_keys, end = 0, hidden = n_keys, end_hidden = 0;
    ptrdiff_t narrow = n_keys;

    if (b->coverage == ATTN_SEE_ALL) {
        return (span){.first = b->first,
                      .n = n_keys,
                      .hidden = b->end,
                      .end_hidden = b->first,
                      .narrow = b->end};
    }
    uint64_t any[ATTN_BLOCK_WORDS] = {0}, all[ATTN_BLOCK_WORDS];
    memset(all, 0xff, sizeof all);
    for (ptrdiff_t r = 0; r < tile_rows(t, tile); r++) {
        ONE_BY_ONE;
        for (int i = 0; i < ATTN_BLOCK_WORDS; i++) {
            any[i] |= t->see[(ptrdiff_t)tile * WIDTH + r][i];
            all[i] &= t->see[(ptrdiff_t)tile * WIDTH + r][i];
        }
        if (r == LANES - 1) {
            narrow = end_of_bits(any);
        }
    }
    for (int i = 0; i < ATTN_BLOCK_WORDS; i++) {
        if (any[i] != 0) {
            first = least(first, i * 64 + __builtin_ctzll(any[i]));
        }
    }
    end = end_of_bits(any);
    first = first / SUM_TERMS * SUM_TERMS;
    end = least(round_up(end, SUM_TERMS), n_keys);
    for (int i = 0; i < ATTN_BLOCK_WORDS; i++) {
        ptrdiff_t from = most(first - i * 64, 0), to = end - i * 64;
        uint64_t wanted = from < 64 && to > from ? bits_between(from, to) : 0;
        wanted &= ~all[i];
        if (wanted != 0) {
            hidden = least(hidden, i * 64 + __builtin_ctzll(wanted));
            end_hidden = i * 64 + 64 - __builtin_clzll(wanted);
        }
    }
    narrow = most(round_up(narrow, SUM_TERMS), first);
    if (end - narrow < LANES || !NARROWS || !attn_get_tuning(ATTN_TUNE_NARROW_TILES)) {
        narrow = most(end, first);
    }
    return (span){.first = b->first + first,
                  .n = most(end - first, 0),
                  .masked = hidden < end_hidden,
                  .hidden = b->first + hidden,
                  .end_hidden = b->first + end_hidden,
                  .narrow = b->first + narrow};
}

/* The spans of all tiles; returns the keys that they cover together. */
static NOINLINE span
open_spans(const task_rows *t, const block *b, span *spans)
{
    span all = {
        .first = b->end, .hidden = b->end, .end_hidden = b->first, .narrow = b->end};
    ptrdiff_t end = b->first;

    for (int tile = 0; tile < t->n_tiles; tile++) {
        spans[tile] = tile_span(t, b, tile);
        all.masked = all.masked || spans[tile].masked;
        all.hidden = least(all.hidden, spans[tile].hidden);
        all.end_hidden = most(all.end_hidden, spans[tile].end_hidden);
        if (spans[tile].n > 0) {
            all.first = least(all.first, spans[tile].first);
            end = most(end, spans[tile].first + spans[tile].n);
        }
    }
    all.n = most(end - all.first, 0);
    return all;
}

#endif
