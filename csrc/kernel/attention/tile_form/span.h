/* The part of a block that the rows of a tile may see. */
#ifndef ATTN_KERNEL_ATTENTION_TILE_FORM_SPAN_H
#define ATTN_KERNEL_ATTENTION_TILE_FORM_SPAN_H

#include "kernel/attention/block.h"

/* The part of a block that rows of one tile may see: keys first .. first + n - 1, as
 * scores S[key][lane]. */
typedef struct {
    ptrdiff_t first;
    ptrdiff_t n;
    bool masked; /* some of these rows may not see some of these keys, */
    ptrdiff_t hidden, end_hidden; /* which lie from the one up to the other */
} span;

/* Bits first .. end - 1 of a word, for first < 64. */
static uint64_t
bits_between(ptrdiff_t first, ptrdiff_t end)
{
    uint64_t below_end = end < 64 ? (UINT64_C(1) << end) - 1 : ~UINT64_C(0);
    return below_end & ~UINT64_C(0) << first;
}

/* Trims keys at both ends of the block that no row of the tile may see, SUM_TERMS at a
 * time. */
static span
tile_span(const task_rows *t, const block *b, int tile)
{
    ptrdiff_t n_keys = b->end - b->first;
    ptrdiff_t first = n_keys, end = 0, hidden = n_keys, end_hidden = 0;

    if (b->coverage == ATTN_SEE_ALL) {
        return (span){b->first, n_keys, false, b->end, b->first};
    }
    uint64_t any[ATTN_BLOCK_WORDS] = {0}, all[ATTN_BLOCK_WORDS];
    memset(all, 0xff, sizeof all);
    for (ptrdiff_t r = 0; r < tile_rows(t, tile); r++) {
        ONE_BY_ONE;
        for (int i = 0; i < ATTN_BLOCK_WORDS; i++) {
            any[i] |= t->see[(ptrdiff_t)tile * WIDTH + r][i];
            all[i] &= t->see[(ptrdiff_t)tile * WIDTH + r][i];
        }
    }
    for (int i = 0; i < ATTN_BLOCK_WORDS; i++) {
        if (any[i] != 0) {
            first = least(first, i * 64 + __builtin_ctzll(any[i]));
            end = i * 64 + 64 - __builtin_clzll(any[i]);
        }
    }
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
    return (span){b->first + first, most(end - first, 0), hidden < end_hidden,
                  b->first + hidden, b->first + end_hidden};
}

/* The spans of all tiles; returns the keys that they cover together. */
static NOINLINE span
open_spans(const task_rows *t, const block *b, span *spans)
{
    span all = {b->end, 0, false, b->end, b->first};
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
