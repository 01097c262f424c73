/* Row form: all rows of the task, few, against one block of keys: keys are lanes of the
 * scores, head dimension those of the output. Keys and values are read once, a group of
 * rows at a time, from wherever they lie. Included by kernel.inc.h only. */

enum {
    GROUPS_AHEAD = 2, /* how far reading is announced to the cache */
    STREAM_ROWS = 2,  /* with so few, what is read in order is not announced */
};

/* Does the task read this array from one end to the other, with little to compute? Then
 * the CPU looks ahead on its own, and announcing disturbs it. */
static bool
is_stream(const work *w, const attn_array *array, ptrdiff_t dim)
{
    return w->task->n_rows <= STREAM_ROWS &&
           array->row_stride == dim * array->column_stride;
}

/* What is wanted GROUPS_AHEAD groups after group `step` of a block, where its keys come
 * first, then its values, then the next block's keys. */
static soon
look_ahead(const work *w, const block *b, ptrdiff_t step)
{
    const attn_problem *p = w->p;
    ptrdiff_t n_groups = (b->end - b->first + KEY_GROUP - 1) / KEY_GROUP;
    ptrdiff_t ahead = step + GROUPS_AHEAD;
    bool value = ahead >= n_groups && ahead < 2 * n_groups;
    const attn_array *array = value ? &p->value : &p->key;
    const char *base = value ? w->task->value : w->task->key;
    ptrdiff_t dim = value ? p->value_dim : p->head_dim;
    ptrdiff_t first =
        b->first + (ahead - (ahead < n_groups ? 0 : n_groups)) * KEY_GROUP;

    if (!w->reads_ahead || first + KEY_GROUP > w->to || is_stream(w, array, dim)) {
        return (soon){.n_rows = 0};
    }
    return soon_rows(array, base + first * array->row_stride, dim, KEY_GROUP);
}

/* The group of keys after the one at `first`, if it is to be touched meanwhile: for reading
 * 16 rows side by side, to transpose them, is no order that a CPU looks ahead in. */
static const char *
next_in_stream(const work *w, ptrdiff_t first)
{
    const attn_array *key = &w->p->key;
    bool there = w->reads_ahead && first + 2 * KEY_GROUP <= w->to;

    return there && is_stream(w, key, w->p->head_dim)
               ? w->task->key + (first + KEY_GROUP) * key->row_stride
               : NULL;
}

/* Reads a little of each of n cache lines. Vectors: on Zen 4 reading a byte of each, or
 * prefetching them, brings them at half the speed. */
static INLINE void
touch_lines(const char *at, const ptrdiff_t n)
{
    typedef float some __attribute__((vector_size(16), aligned(1), may_alias));

    for (ptrdiff_t i = 0; i < n; i++) {
        (void)*(const volatile some *)(const volatile void *)(at + i * CACHE_LINE);
    }
}

/* Asks for the line at a byte offset of each row, as prefetch_rows. */
static INLINE void
prefetch_line(const soon *s, ptrdiff_t offset)
{
    for (ptrdiff_t i = 0; offset < s->bytes && i < s->n_rows; i++) {
        __builtin_prefetch(s->at + i * s->row + offset, 0, 2);
    }
}

/* sum[row][lane] += query[row][d] * key[lane][d] for the n operands d from `at` on that
 * the transposed vectors of k hold. */
static INLINE void
add_products(v_real *sum, const v_operand *k, const int n, const int rows,
             const work *w, ptrdiff_t at)
{
    for (int i = 0; i < n; i++) {
        for (int r = 0; r < rows; r++) {
            v_operand q = v_set1_operand(w->query[r * w->key_width + at + i]);
            sum[r] = v_dot(q, k[i], sum[r]);
        }
    }
}

/* Where LANES keys lie, and what is read or announced meanwhile. */
typedef struct {
    const char *at;
    ptrdiff_t row;     /* bytes from key to key */
    const char *touch; /* as much as KEY_GROUP keys; or NULL */
    soon next;
} key_lanes;

/* scores[row][lane] = query[row] . key[lane] for LANES keys, transposed in registers. */
static INLINE void
score_keys(const work *w, const key_lanes *keys, const int rows, real *scores,
           const storage kind)
{
    const ptrdiff_t size = kind == AS_OPERANDS ? sizeof(operand) : 2;
    const ptrdiff_t lines =
        KEY_GROUP * LANES * size / CACHE_LINE; /* in LANES columns */
    const char *at = keys->at;
    ptrdiff_t d = 0;

    for (ptrdiff_t first = 0; first == 0 || first < w->key_width; first += DIM_STEPS) {
        ptrdiff_t end = least(first + DIM_STEPS, w->key_width);
        v_real sum[ATTN_FEW_ROWS];
        v_operand k[LANES];
        for (int r = 0; r < rows; r++) {
            sum[r] = v_set1(0);
        }
        for (; d + LANES <= end; d += LANES, at += LANES * size) {
            if (d * size % CACHE_LINE == 0) {
                prefetch_line(&keys->next, d * size);
            }
            for (int i = 0; i < LANES; i++) {
                k[i] = load_operands(at + i * keys->row, NULL, kind);
            }
            v_transpose_operands(k);
            add_products(sum, k, LANES, rows, w, d);
            if (rows <= STREAM_ROWS && keys->touch != NULL) {
                touch_lines(keys->touch + KEY_GROUP * d * size, lines);
            }
        }
        for (; d < end; d++, at += size) {
            operand lanes[LANES];
            for (int i = 0; i < LANES; i++) {
                lanes[i] = load_operand(at + i * keys->row, kind);
            }
            k[0] = v_load_operands(lanes);
            add_products(sum, k, 1, rows, w, d);
        }
        for (int r = 0; r < rows; r++) {
            real *to = scores + (ptrdiff_t)r * ATTN_BLOCK;
            v_store(to, first == 0 ? sum[r] : v_add(v_load(to), sum[r]));
        }
    }
}

static INLINE void
score_keys_as(const work *w, const key_lanes *keys, real *scores, const storage kind)
{
    switch (row_form_rows(w->task->n_rows)) {
    case 1: score_keys(w, keys, 1, scores, kind); break;
    case 2: score_keys(w, keys, 2, scores, kind); break;
    case 4: score_keys(w, keys, 4, scores, kind); break;
    default: score_keys(w, keys, 8, scores, kind); break;
    }
}

static NOINLINE void
score_keys_of_rows(const work *w, const key_lanes *keys, real *scores, storage kind)
{
    switch (kind) {
#if REAL_BITS == 32 && TERMS == 1
    case AS_F16: score_keys_as(w, keys, scores, AS_F16); break;
    case AS_BF16: score_keys_as(w, keys, scores, AS_BF16); break;
#endif
    default: score_keys_as(w, keys, scores, AS_OPERANDS); break;
    }
}

/* Brings n keys into the slab, and zeros in the place of those that whole vectors lack. */
static const char *
gather_keys(work *w, ptrdiff_t first, ptrdiff_t n)
{
    const attn_array *key = &w->p->key;
    const char *from = w->task->key + first * key->row_stride;
    operand *to = w->slab;

    for (ptrdiff_t j = 0; j < n; j++, to += w->key_width, from += key->row_stride) {
        stage_row(to, from, key->column_stride, w->p->head_dim, key->dtype);
    }
    memset(to, 0, (size_t)((round_up(n, LANES) - n) * w->key_width) * sizeof(operand));
    return (const char *)w->slab;
}

/* Products of queries with the block's keys from k on, KEY_GROUP or as many as there are. */
static void
score_group(work *w, const block *b, ptrdiff_t k)
{
    const attn_array *key = &w->p->key;
    ptrdiff_t first = b->first + k, n = least(b->end - first, KEY_GROUP);
    storage kind = key_storage(key->dtype);
    key_lanes keys = {.at = w->task->key + first * key->row_stride,
                      .row = key->row_stride,
                      .next = look_ahead(w, b, k / KEY_GROUP)};

    if (n % LANES == 0 && reads_in_place(key, w->p->head_dim, kind)) {
        keys.touch = next_in_stream(w, first);
    } else {
        keys.at = gather_keys(w, first, n);
        keys.row = w->key_width * (ptrdiff_t)sizeof(operand);
        kind = AS_OPERANDS;
    }
    for (ptrdiff_t lane = 0; lane < n; lane += LANES) {
        score_keys_of_rows(w, &keys, w->scores + k + lane, kind);
        keys.at += LANES * keys.row;
        keys.touch = NULL;
        keys.next.n_rows = 0;
    }
}

/* S[row][key] for the block's keys; what is no key, up to whole vectors, is -inf. Returns
 * what factor makes scores logits. */
static real
score_rows(work *w, const block *b)
{
    ptrdiff_t n_keys = b->end - b->first;
    bool plain = are_plain_scores(w);

    for (ptrdiff_t k = 0; k < n_keys; k += KEY_GROUP) {
        score_group(w, b, k);
    }
    if (!plain || b->coverage == ATTN_SEE_SOME) {
        finish_scores(&(strip){.at = w->scores,
                               .line = ATTN_BLOCK,
                               .bias = w->task->bias != NULL ? w->bias : NULL,
                               .bias_line = ATTN_BLOCK,
                               .bits = b->coverage == ATTN_SEE_SOME ? w->see[0] : NULL,
                               .bits_line = ATTN_BLOCK_WORDS,
                               .n_lines = w->task->n_rows,
                               .n_vec = (int)((n_keys + LANES - 1) / LANES)},
                      plain ? 1 : w->scale, w->p->softcap);
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        for (ptrdiff_t k = n_keys; k < round_up(n_keys, LANES); k++) {
            w->scores[r * ATTN_BLOCK + k] = (real)-INFINITY;
        }
    }
    return plain ? w->scale : 1;
}

/* As exponentiate_lanes, for rows that are lines, and without their sums. */
static void
exponentiate_rows(work *w, ptrdiff_t n_keys, real scale)
{
    real top[WIDTH];
    partial *s = &w->chunk;

    for (ptrdiff_t r = 0; r < WIDTH; r++) {
        v_real line_top = v_set1((real)-INFINITY);
        for (ptrdiff_t k = 0; r < w->task->n_rows && k < n_keys; k += LANES) {
            line_top = v_max(v_load(w->scores + r * ATTN_BLOCK + k), line_top);
        }
        top[r] = v_reduce_max(line_top) * scale;
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r += LANES) {
        v_store(w->rescale + r, raise_max(s->max + r, v_load(top + r)));
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        v_real max = finite_floor(v_set1(s->max[r]));
        for (ptrdiff_t k = 0; k < n_keys; k += LANES) {
            v_store(line + k, exp_of(v_fms(v_load(line + k), v_set1(scale), max)));
        }
    }
}

/* Adds n weights of a row from k on to their sum, in the order of keys, and makes them
 * operands. */
static INLINE void
sum_weights(real *line, ptrdiff_t k, const ptrdiff_t n, real *sum)
{
    real total = *sum;

    for (ptrdiff_t i = k; i < k + n; i++) {
        total += line[i];
    }
    *sum = total;
    pack_row_weights(line, k, n);
}

/* Continues the block's sums of weights, and of weighted values, from key k on. The sum of
 * weights is a chain of its own that runs beside the products. */
static void
add_value_group(work *w, const block *b, ptrdiff_t k, real *sums)
{
    const attn_array *value = &w->p->value;
    ptrdiff_t value_dim = w->p->value_dim, width = w->value_width;
    ptrdiff_t n = least(b->end - b->first - k, KEY_GROUP);
    ptrdiff_t n_steps = (n + TERMS - 1) / TERMS;
    storage kind = value_storage(value->dtype);
    product m = {.c = w->row_sums,
                 .c_row = width,
                 .a = {(const operand *)w->scores + k / TERMS, ATTN_BLOCK},
                 .b = w->task->value + (b->first + k) * value->row_stride,
                 .b_row = value->row_stride,
                 .n_rows = row_form_rows(w->task->n_rows),
                 .n_steps = n_steps,
                 .resume = true};
    soon next = look_ahead(w, b, (b->end - b->first + k + KEY_GROUP - 1) / KEY_GROUP);
    matrix values = {NULL, 0};

    prefetch_rows(&next, 0, next.n_rows);
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        if (n == KEY_GROUP) {
            sum_weights(line, k, KEY_GROUP, sums + r);
        } else {
            sum_weights(line, k, n, sums + r);
        }
    }
    if (b->coverage != ATTN_SEE_ALL || width != value_dim || n % TERMS != 0 ||
        !reads_in_place(value, value_dim, kind)) {
        values = fetch_values(w, b->first + k, n, 0, value_dim, width);
        m.b = (const char *)values.at;
        m.b_row = values.row * (ptrdiff_t)sizeof(operand);
        kind = AS_OPERANDS;
    }
    if (b->coverage == ATTN_SEE_ALL || all_finite(values, n_steps, value_dim)) {
        multiply_few(m, width / LANES, kind);
        return;
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        for (ptrdiff_t d = 0; d < value_dim; d++) {
            real *sum = m.c + r * width + d;
            *sum = sum_seen_values(w, r, k, n_steps, m.a.at + r * ATTN_BLOCK, 1, values,
                                   d, *sum);
        }
    }
}

/* Adds what the rows see in a block to the chunk's partial. */
static void
attend_rows(work *w, const block *b)
{
    ptrdiff_t n_keys = b->end - b->first;
    ptrdiff_t n_sums = w->task->n_rows * w->value_width;
    bool add = !w->chunk.empty[0];
    real sums[WIDTH] = {0}; /* of the block's weights */

    exponentiate_rows(w, n_keys, score_rows(w, b));
    memset(w->row_sums, 0,
           (size_t)(row_form_rows(w->task->n_rows) * w->value_width) * sizeof(real));
    for (ptrdiff_t k = 0; k < n_keys; k += KEY_GROUP) {
        add_value_group(w, b, k, sums);
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r += LANES) {
        v_real before = v_load(w->chunk.sum + r), keep = v_load(w->rescale + r);
        v_store(w->chunk.sum + r, v_fma(before, keep, v_load(sums + r)));
    }
    for (ptrdiff_t i = 0; i < n_sums; i += LANES) {
        v_real sum = v_load(w->row_sums + i);
        if (add) {
            v_real keep = v_set1(w->rescale[i / w->value_width]);
            sum = v_fma(v_load(w->row_output + i), keep, sum);
        }
        v_store(w->row_output + i, sum);
    }
    w->chunk.empty[0] = false;
}

/* Brings the chunk's output into the layout of a tile, for merging and writing. */
static void
rows_to_tile(work *w)
{
    for (ptrdiff_t r = 0; r < w->task->n_rows && !w->chunk.empty[0]; r++) {
        for (ptrdiff_t d = 0; d < w->p->value_dim; d++) {
            w->chunk.output[0][d * WIDTH + r] = w->row_output[r * w->value_width + d];
        }
    }
}

/* The second sweep, as write_tile_weights. */
static void
write_row_weights(work *w, const block *b)
{
    const attn_array *weights = &w->p->weights;
    ptrdiff_t n_keys = b->end - b->first;

    real scale = score_rows(w, b);
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        v_real max = v_set1(w->total.max[r]), inverse = v_set1(w->total.sum[r]);
        for (ptrdiff_t k = 0; k < n_keys; k += LANES) {
            v_store(line + k, weight_of(v_load(line + k), scale, max, inverse));
        }
        store_row(w->task->weights + row_offset(w, weights, r) +
                      b->first * weights->column_stride,
                  weights->column_stride, line, n_keys, weights->dtype);
    }
}
