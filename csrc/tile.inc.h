/* Tile form: one tile of rows against one block of keys. Included by kernel.inc.h only. */

/* The part of a block that rows of one tile may see: keys first .. first + n - 1, as
 * scores S[key][lane]. */
typedef struct {
    ptrdiff_t first;
    ptrdiff_t n;
    bool masked; /* some of these rows may not see some of these keys */
} span;

/* Leaves out the keys at both ends of the block that no row of the tile may see. */
static span
tile_span(const work *w, const block *b, int tile)
{
    const ptrdiff_t *from = w->task->see_from + (ptrdiff_t)tile * WIDTH;
    const ptrdiff_t *to = w->task->see_to + (ptrdiff_t)tile * WIDTH;
    ptrdiff_t first = b->end, last = b->first;
    ptrdiff_t all_from = b->first, all_to = b->end;

    for (ptrdiff_t r = 0; r < tile_rows(w, tile); r++) {
        all_from = most(all_from, from[r]);
        all_to = least(all_to, to[r]);
        if (from[r] < to[r]) {
            first = least(first, from[r]);
            last = most(last, to[r]);
        }
    }
    first = most(first, b->first);
    last = least(last, b->end);
    bool mixed = b->coverage == ATTN_SEE_SOME &&
                 (w->task->mask != NULL || w->task->bias != NULL);
    return (span){first, most(last - first, 0),
                  mixed || all_from > first || all_to < last};
}

static void
load_bias_tile(work *w, const block *b, int tile, const span *s)
{
    for (ptrdiff_t lane = 0; lane < tile_rows(w, tile); lane += LANES) {
        ptrdiff_t n = least(tile_rows(w, tile) - lane, LANES);
        const real *rows[LANES] = {NULL};
        for (ptrdiff_t i = 0; i < n; i++) {
            ptrdiff_t row = (ptrdiff_t)tile * WIDTH + lane + i;
            rows[i] = w->bias + row * ATTN_BLOCK + (s->first - b->first);
        }
        transpose_in(w->bias_tile + lane, WIDTH, rows, n, s->n, 1);
    }
}

/* The logits of a span, masked ones -inf. */
static void
score_tile(work *w, const block *b, int tile, const span *s)
{
    const attn_problem *p = w->p;
    ptrdiff_t offset = s->first - b->first;
    int n_vec = tile_vectors(w, tile);

    multiply_scores((product){.c = w->scores,
                              .c_row = WIDTH,
                              .a = {b->key.at + offset * b->key.row, b->key.row},
                              .b = {w->query + tile * WIDTH * p->head_dim, WIDTH},
                              .n_rows = s->n},
                    n_vec, p->head_dim);
    if (w->task->bias != NULL) {
        load_bias_tile(w, b, tile, s);
    }
    if (s->masked || w->task->bias != NULL || p->softcap > 0) {
        finish_scores(&(strip){.at = w->scores,
                               .line = WIDTH,
                               .bias = w->task->bias != NULL ? w->bias_tile : NULL,
                               .bits = s->masked ? w->see_lanes + offset : NULL,
                               .bits_line = 1,
                               .first_bit = (ptrdiff_t)tile * WIDTH,
                               .n_lines = s->n,
                               .n_vec = n_vec},
                      p->softcap);
    }
}

/* Turns the scores of n_vec vectors of rows into exponentials relative to the running
 * maximum and adds them to the running sum. */
static INLINE void
exponentiate_lanes(real *scores, ptrdiff_t n_keys, real *max, real *sum, real *rescale,
                   const int n_vec)
{
    v_real top[TILE_VECTORS], total[TILE_VECTORS];

    for (int v = 0; v < n_vec; v++) {
        top[v] = v_set1((real)-INFINITY);
    }
    for (ptrdiff_t k = 0; k < n_keys; k++) {
        for (int v = 0; v < n_vec; v++) {
            top[v] = v_max(v_load(scores + k * WIDTH + v * LANES), top[v]);
        }
    }
    for (int v = 0; v < n_vec; v++) {
        v_real factor = raise_max(max + v * LANES, top[v]);
        v_store(rescale + v * LANES, factor);
        top[v] = finite_floor(v_load(max + v * LANES));
        total[v] = v_set1(0);
    }
    for (ptrdiff_t k = 0; k < n_keys; k++) {
        for (int v = 0; v < n_vec; v++) {
            real *at = scores + k * WIDTH + v * LANES;
            v_real e = exp_of(v_sub(v_load(at), top[v]));
            total[v] = v_add(total[v], e);
            v_store(at, e);
        }
    }
    for (int v = 0; v < n_vec; v++) {
        v_real before = v_load(sum + v * LANES);
        v_store(sum + v * LANES, v_fma(before, v_load(rescale + v * LANES), total[v]));
    }
}

/* output[d][lane] = output[d][lane] * rescale[lane], if `add`, plus the sum over the keys
 * that the tile's rows may see, one by one. */
static void
add_seen_values(work *w, const block *b, int tile, const span *s, matrix values,
                bool add)
{
    for (ptrdiff_t i = 0; i < tile_rows(w, tile); i++) {
        for (ptrdiff_t d = 0; d < w->p->value_dim; d++) {
            real *at = w->chunk.output[tile] + d * WIDTH + i;
            real sum =
                sum_seen_values(w, (ptrdiff_t)tile * WIDTH + i, s->first - b->first,
                                s->n, w->scores + i, WIDTH, values, d, 0);
            real lanes[LANES];
            v_store(lanes, v_fma(v_set1(*at), v_set1(w->rescale[i]), v_set1(sum)));
            *at = add ? lanes[0] : sum;
        }
    }
}

/* Adds what a tile's rows see in a block to the chunk's partial. */
static void
attend_tile(work *w, const block *b, int tile)
{
    ptrdiff_t lane = (ptrdiff_t)tile * WIDTH;
    real *max = w->chunk.max + lane, *sum = w->chunk.sum + lane;
    span s = tile_span(w, b, tile);
    int n_vec = tile_vectors(w, tile);

    if (s.n == 0) {
        return;
    }
    score_tile(w, b, tile, &s);
    if (n_vec == TILE_VECTORS) {
        exponentiate_lanes(w->scores, s.n, max, sum, w->rescale, TILE_VECTORS);
    } else {
        for (int v = 0; v < n_vec; v++) {
            ptrdiff_t i = (ptrdiff_t)v * LANES;
            exponentiate_lanes(w->scores + i, s.n, max + i, sum + i, w->rescale + i, 1);
        }
    }
    bool add = !w->chunk.empty[tile];
    ptrdiff_t offset = s.first - b->first;
    matrix values = {b->value.at + offset * b->value.row, b->value.row};
    if (b->values_finite || !s.masked) {
        multiply_transposed((product){.c = w->chunk.output[tile],
                                      .c_row = WIDTH,
                                      .a = values,
                                      .b = {w->scores, WIDTH},
                                      .n_rows = w->p->value_dim,
                                      .n_steps = s.n,
                                      .add = add,
                                      .keep = w->rescale},
                            n_vec);
    } else {
        add_seen_values(w, b, tile, &s, values, add);
    }
    w->chunk.empty[tile] = false;
}

/* The second sweep: weights[row][key] = e^(logit - max) / sum for one tile and block. */
static void
write_tile_weights(work *w, const block *b, int tile)
{
    const attn_array *weights = &w->p->weights;
    span s = tile_span(w, b, tile);

    if (s.n == 0) {
        return;
    }
    score_tile(w, b, tile, &s);
    for (ptrdiff_t lane = 0; lane < tile_rows(w, tile); lane += LANES) {
        ptrdiff_t r = (ptrdiff_t)tile * WIDTH + lane;
        v_real max = v_load(w->total.max + r), inverse = v_load(w->total.sum + r);
        for (ptrdiff_t k = 0; k < s.n; k++) {
            real *at = w->scores + k * WIDTH + lane;
            v_store(at, weight_of(v_load(at), max, inverse));
        }
        store_lanes(w, weights, w->task->weights + s.first * weights->column_stride, r,
                    w->scores + lane, s.n);
    }
}
