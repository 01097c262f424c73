/* Bands of keys: rows of a tile that may see the same keys of a block. */
#ifndef ATTN_KERNEL_BACKWARD_BANDS_H
#define ATTN_KERNEL_BACKWARD_BANDS_H

#include "kernel/backward/task.h"

/* Bands begin and end at multiples of BAND_KEYS keys of a span, so that there are few. */
enum { BAND_KEYS = 16 };

/* Widens a tile's span to where bands of all keys may begin and end. */
static void
widen_span(span *tile, const span *all)
{
    if (tile->n == 0) {
        tile->first = all->first;
        return;
    }
    ptrdiff_t from = tile->first - all->first, end = from + tile->n;
    ptrdiff_t first = from / BAND_KEYS * BAND_KEYS;
    ptrdiff_t behind = least(round_up(end, BAND_KEYS), all->n);

    if (first < from) {
        tile->hidden = all->first + first;
        tile->end_hidden = most(tile->end_hidden, tile->first);
    }
    if (end < behind) {
        tile->hidden = least(tile->hidden, all->first + end);
        tile->end_hidden = all->first + behind;
    }
    tile->first = all->first + first;
    tile->n = behind - first;
    tile->narrow = all->first + behind;
    tile->masked = tile->hidden < tile->end_hidden;
}

/* A band of keys, and the tile's rows from `row` up to `end_row` that may see some of them. */
typedef struct {
    span keys;
    ptrdiff_t row, end_row;
} band;

/* The band from a key on, up to where some tile's span begins or ends; `s` is all spans. Rows of
 * several heads stay together: their operands begin where heads do. */
static band
band_at(const backward_work *w, const span *spans, const span *s, ptrdiff_t key)
{
    ptrdiff_t n_rows = w->task.n_rows, end = s->first + s->n;
    band found = {{.first = key, .n = end - key, .masked = s->masked}, 0, n_rows};

    if (end_of_head(&w->task, 0) < n_rows) {
        return found;
    }
    found.row = n_rows;
    found.end_row = 0;
    for (int t = 0; t < w->rows.n_tiles; t++) {
        ptrdiff_t behind = spans[t].first + spans[t].n;
        if (spans[t].n > 0 && key < spans[t].first) {
            end = least(end, spans[t].first);
        } else if (key < behind) {
            end = least(end, behind);
            found.row = least(found.row, t * WIDTH);
            found.end_row = least((t + 1) * WIDTH, n_rows);
        }
    }
    found.keys.n = end - key;
    return found;
}

#endif
