/* Tile form: the tiles of a task against one block of keys. Included by kernel.inc.h only. */

/* The part of a block that rows of one tile may see: keys first .. first + n - 1, as
 * scores S[key][lane]. */
typedef struct {
    ptrdiff_t first;
    ptrdiff_t n;
    bool masked; /* some of these rows may not see some of these keys */
} span;

/* Bits first .. end - 1 of a word, for first < 64. */
static uint64_t
bits_between(ptrdiff_t first, ptrdiff_t end)
{
    uint64_t below_end = end < 64 ? (UINT64_C(1) << end) - 1 : ~UINT64_C(0);
    return below_end & ~UINT64_C(0) << first;
}

/* Leaves out the keys at both ends of the block that no row of the tile may see, whole
 * operands of values. */
static span
tile_span(const work *w, const block *b, int tile)
{
    ptrdiff_t n_keys = b->end - b->first;
    ptrdiff_t first = n_keys, end = 0;
    bool masked = false;

    if (b->coverage == ATTN_SEE_ALL) {
        return (span){b->first, n_keys, false};
    }
    uint64_t any[ATTN_BLOCK_WORDS] = {0}, all[ATTN_BLOCK_WORDS];
    memset(all, 0xff, sizeof all);
    for (ptrdiff_t r = 0; r < tile_rows(w, tile); r++) {
        for (int i = 0; i < ATTN_BLOCK_WORDS; i++) {
            any[i] |= w->see[(ptrdiff_t)tile * WIDTH + r][i];
            all[i] &= w->see[(ptrdiff_t)tile * WIDTH + r][i];
        }
    }
    for (int i = 0; i < ATTN_BLOCK_WORDS; i++) {
        if (any[i] != 0) {
            first = least(first, i * 64 + __builtin_ctzll(any[i]));
            end = i * 64 + 64 - __builtin_clzll(any[i]);
        }
    }
    first = first / TERMS * TERMS;
    end = least(round_up(end, TERMS), n_keys);
    for (int i = 0; i < ATTN_BLOCK_WORDS; i++) {
        ptrdiff_t from = most(first - i * 64, 0), to = end - i * 64;
        uint64_t wanted = from < 64 && to > from ? bits_between(from, to) : 0;
        masked = masked || (all[i] & wanted) != wanted;
    }
    return (span){b->first + first, most(end - first, 0), masked};
}

/* The spans of all tiles; returns the keys that they cover together. */
static span
open_spans(const work *w, const block *b, span *spans)
{
    ptrdiff_t first = b->end, end = b->first;
    bool masked = false;

    for (int t = 0; t < w->n_tiles; t++) {
        spans[t] = tile_span(w, b, t);
        masked = masked || spans[t].masked;
        if (spans[t].n > 0) {
            first = least(first, spans[t].first);
            end = most(end, spans[t].first + spans[t].n);
        }
    }
    return (span){first, most(end - first, 0), masked};
}

static real *
scores_of(const work *w, int tile)
{
    return w->scores + (ptrdiff_t)tile * ATTN_BLOCK * WIDTH;
}

/* A block's rows of key or value, if they are to be announced. */
static soon
rows_soon(const work *w, const attn_array *array, const char *base, ptrdiff_t first,
          ptrdiff_t n_columns)
{
    if (!w->reads_ahead) {
        return (soon){.n_rows = 0};
    }
    return soon_rows(array, base + first * array->row_stride, n_columns,
                     least(w->to - first, ATTN_BLOCK));
}

/* What follows the task's queries: most likely the next task's. */
static soon
queries_soon(const work *w)
{
    const attn_array *query = &w->p->query;
    ptrdiff_t n_rows = w->task->n_rows;

    return soon_rows(query, w->task->query + row_offset(w, query, n_rows),
                     w->p->head_dim, n_rows);
}

/* The first keys or values of the next head, in the last block of this one. */
static soon
next_head_soon(const work *w, const block *b, const attn_array *array, const char *base,
               ptrdiff_t n_columns)
{
    if (!w->ends_head || b->end < w->to) {
        return (soon){.n_rows = 0};
    }
    return soon_rows(array, base + array->head_stride, n_columns,
                     least(w->p->n_keys, ATTN_BLOCK));
}

/* The bias of the block at `first` for the task's rows of one head. */
static soon
bias_soon(const work *w, ptrdiff_t first)
{
    const attn_array *bias = &w->p->bias;
    ptrdiff_t n_keys = least(w->to - first, ATTN_BLOCK);
    ptrdiff_t n_queries = w->p->n_queries;

    if (w->task->bias == NULL || n_keys <= 0) {
        return (soon){.n_rows = 0};
    }
    return soon_rows(
        bias, w->bias_rows[0] + first * bias->column_stride, n_keys,
        least(w->task->n_rows, n_queries - w->task->first_row % n_queries));
}

/* The products of queries and keys of each span; `seen` is all of them. */
static void
multiply_scores(work *w, const block *b, const span *spans, const span *seen)
{
    const attn_problem *p = w->p;
    soon next[2] = {rows_soon(w, &p->value, w->task->value, b->first, p->value_dim),
                    next_head_soon(w, b, &p->key, w->task->key, p->head_dim)};
    ptrdiff_t d = 0;

    do { /* D may be 0 */
        ptrdiff_t n_columns = least(p->head_dim - d, ATTN_DIM_BLOCK);
        matrix keys = fetch_keys(w, seen->first, seen->n, d, n_columns);
        for (int t = 0; t < w->n_tiles; t++) {
            const operand *query = w->query + (t * w->key_width + d / TERMS) * WIDTH;
            if (spans[t].n == 0) {
                continue;
            }
            multiply(
                (product){.c = scores_of(w, t),
                          .c_row = WIDTH,
                          .a = {keys.at + (spans[t].first - seen->first) * keys.row,
                                keys.row},
                          .b = (const char *)query,
                          .b_row = WIDTH * sizeof(operand),
                          .n_rows = spans[t].n,
                          .n_steps = (n_columns + TERMS - 1) / TERMS,
                          .add = d > 0,
                          .next = {next[0], next[1]}},
                tile_vectors(w, t));
            next[0].n_rows = next[1].n_rows = 0;
        }
        d += ATTN_DIM_BLOCK;
    } while (d < p->head_dim);
}

/* finish_scores of a tile, whose first key is `first` of the block, with the bias, LANES x
 * LANES at a time: what is transposed stays near. */
static void
finish_with_bias(const work *w, const block *b, const strip *all, int tile,
                 ptrdiff_t first)
{
    real bias[LANES * LANES];

    for (ptrdiff_t lane = 0; lane < tile_rows(w, tile); lane += LANES) {
        ptrdiff_t n_rows = least(tile_rows(w, tile) - lane, LANES);
        for (ptrdiff_t k = 0; k < all->n_lines; k += LANES) {
            strip part = *all;
            const real *rows[LANES] = {NULL};
            for (ptrdiff_t i = 0; i < n_rows; i++) {
                rows[i] =
                    bias_row(w, b, (ptrdiff_t)tile * WIDTH + lane + i) + first + k;
            }
            part.n_lines = least(all->n_lines - k, LANES);
            transpose_in(bias, LANES, rows, n_rows, part.n_lines, NULL);
            part.at += k * WIDTH + lane;
            part.bias = bias;
            part.bias_line = LANES;
            part.bits = all->bits == NULL ? NULL : all->bits + k;
            part.first_bit += lane;
            part.n_vec = 1;
            finish_scores(&part, w->scale, w->p->softcap);
        }
    }
}

/* From the products of a span to its scores, masked ones -inf; returns what factor still
 * makes them logits. */
static real
finish_tile(work *w, const block *b, int tile, const span *s)
{
    bool plain = are_plain_scores(w);
    strip all = {.at = scores_of(w, tile),
                 .line = WIDTH,
                 .bits = s->masked ? w->see_lanes + (s->first - b->first) : NULL,
                 .bits_line = 1,
                 .first_bit = (ptrdiff_t)tile * WIDTH,
                 .n_lines = s->n,
                 .n_vec = tile_vectors(w, tile)};

    if (w->task->bias != NULL) {
        finish_with_bias(w, b, &all, tile, s->first - b->first);
        return 1;
    }
    if (plain && !s->masked) {
        return w->scale;
    }
    finish_scores(&all, plain ? 1 : w->scale, w->p->softcap);
    return plain ? w->scale : 1;
}

/* Turns the scores of n_vec vectors of rows, times scale, into exponentials relative to
 * the running maximum, and adds them to the running sum. */
static INLINE void
exponentiate_lanes(real *scores, ptrdiff_t n_keys, real scale, real *max, real *sum,
                   real *rescale, const int n_vec)
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
        v_real factor = raise_max(max + v * LANES, v_mul(top[v], v_set1(scale)));
        v_store(rescale + v * LANES, factor);
        top[v] = finite_floor(v_load(max + v * LANES));
        total[v] = v_set1(0);
    }
    for (ptrdiff_t k = 0; k < n_keys; k++) {
        for (int v = 0; v < n_vec; v++) {
            real *at = scores + k * WIDTH + v * LANES;
            v_real e = exp_of(v_fms(v_load(at), v_set1(scale), top[v]));
            total[v] = v_add(total[v], e);
            v_store(at, e);
        }
    }
    for (int v = 0; v < n_vec; v++) {
        v_real before = v_load(sum + v * LANES);
        v_store(sum + v * LANES, v_fma(before, v_load(rescale + v * LANES), total[v]));
    }
}

/* The softmax of a tile's scores so far: exponentials in their place, as operands. */
static void
exponentiate_tile(work *w, const block *b, int tile, const span *s)
{
    ptrdiff_t lane = (ptrdiff_t)tile * WIDTH;
    real *scores = scores_of(w, tile), *rescale = w->rescale + lane;
    real *max = w->chunk.max + lane, *sum = w->chunk.sum + lane;
    int n_vec = tile_vectors(w, tile);
    real scale = finish_tile(w, b, tile, s);

    if (n_vec == TILE_VECTORS) {
        exponentiate_lanes(scores, s->n, scale, max, sum, rescale, TILE_VECTORS);
    }
    for (ptrdiff_t i = 0; i < n_vec * LANES; i += LANES) {
        if (n_vec < TILE_VECTORS) {
            exponentiate_lanes(scores + i, s->n, scale, max + i, sum + i, rescale + i,
                               1);
        }
        pack_weights(scores + i, s->n, WIDTH);
    }
}

/* Columns of values from d on, for the product of their block with a tile's weights. */
typedef struct {
    matrix at;
    ptrdiff_t first; /* key */
    bool finite;
    ptrdiff_t d;
    ptrdiff_t n_columns;
} value_slab;

/* output[d][lane] = output[d][lane] * rescale[lane], if `add`, plus the sum over the keys
 * that the tile's rows may see, one by one. */
static void
add_seen_values(work *w, int tile, const product *m, ptrdiff_t first_key)
{
    for (ptrdiff_t i = 0; i < tile_rows(w, tile); i++) {
        for (ptrdiff_t d = 0; d < m->n_rows; d++) {
            real *at = m->c + d * WIDTH + i;
            real sum = sum_seen_values(
                w, (ptrdiff_t)tile * WIDTH + i, first_key, m->n_steps,
                (const operand *)(const void *)m->b + i, WIDTH, m->a, d, 0);
            real lanes[LANES];
            v_store(lanes, v_fma(v_set1(*at), v_set1(m->keep[i]), v_set1(sum)));
            *at = m->add ? lanes[0] : sum;
        }
    }
}

/* Adds the products of a tile's weights and a slab of values to the chunk's output. */
static void
add_values(work *w, const block *b, int tile, const span *s, const value_slab *values,
           const soon next[2])
{
    ptrdiff_t offset = s->first - values->first;
    product m = {.c = w->chunk.output[tile] + values->d * WIDTH,
                 .c_row = WIDTH,
                 .a = {values->at.at + offset / TERMS * values->at.row, values->at.row},
                 .b = (const char *)scores_of(w, tile),
                 .b_row = WIDTH * sizeof(real),
                 .n_rows = values->n_columns,
                 .n_steps = (s->n + TERMS - 1) / TERMS,
                 .add = !w->chunk.empty[tile],
                 .keep = w->rescale + (ptrdiff_t)tile * WIDTH,
                 .next = {next[0], next[1]}};

    if (values->finite || !s->masked) {
        multiply_transposed(m, tile_vectors(w, tile));
    } else {
        add_seen_values(w, tile, &m, s->first - b->first);
    }
}

/* Adds what the rows see in a block to the chunk's partial. */
static void
attend_tiles(work *w, const block *b)
{
    const attn_problem *p = w->p;
    bool in_place = TERMS == 1 && reads_in_place(&p->value, p->value_dim, AS_OPERANDS);
    ptrdiff_t width = in_place ? p->value_dim : SLAB_COLUMNS;
    const attn_array *key = &p->key, *value = &p->value;
    bool last = b->end >= w->to;
    soon next[2] = {last ? queries_soon(w)
                         : rows_soon(w, key, w->task->key, b->end, p->head_dim),
                    last ? next_head_soon(w, b, value, w->task->value, p->value_dim)
                         : bias_soon(w, b->end)};
    span spans[MAX_TILES];
    span seen = open_spans(w, b, spans);

    multiply_scores(w, b, spans, &seen);
    for (int t = 0; t < w->n_tiles; t++) {
        if (spans[t].n > 0) {
            exponentiate_tile(w, b, t, &spans[t]);
        }
    }
    for (ptrdiff_t d = 0; d < p->value_dim; d += width) {
        ptrdiff_t n_columns = least(p->value_dim - d, width);
        value_slab values = {.first = seen.first, .d = d, .n_columns = n_columns};
        values.at = fetch_values(w, seen.first, seen.n, d, n_columns, n_columns);
        values.finite = !seen.masked ||
                        all_finite(values.at, (seen.n + TERMS - 1) / TERMS, n_columns);
        for (int t = 0; t < w->n_tiles; t++) {
            if (spans[t].n > 0) {
                add_values(w, b, t, &spans[t], &values, next);
                next[0].n_rows = next[1].n_rows = 0;
            }
        }
    }
    for (int t = 0; t < w->n_tiles; t++) {
        w->chunk.empty[t] = w->chunk.empty[t] && spans[t].n == 0;
    }
}

/* The second sweep: weights[row][key] = e^(logit - max) / sum for one block. */
static void
write_tile_weights(work *w, const block *b)
{
    const attn_array *weights = &w->p->weights;
    span spans[MAX_TILES];
    span seen = open_spans(w, b, spans);

    multiply_scores(w, b, spans, &seen);
    for (int t = 0; t < w->n_tiles; t++) {
        const span *s = &spans[t];
        real scale = s->n > 0 ? finish_tile(w, b, t, s) : 1;
        for (ptrdiff_t lane = 0; s->n > 0 && lane < tile_rows(w, t); lane += LANES) {
            ptrdiff_t r = (ptrdiff_t)t * WIDTH + lane;
            v_real max = v_load(w->total.max + r), inverse = v_load(w->total.sum + r);
            real *scores = scores_of(w, t) + lane;
            for (ptrdiff_t k = 0; k < s->n; k++) {
                v_real weight =
                    weight_of(v_load(scores + k * WIDTH), scale, max, inverse);
                v_store(scores + k * WIDTH, weight);
            }
            store_result(w, weights,
                         w->task->weights + s->first * weights->column_stride, r,
                         scores, s->n);
        }
    }
}
