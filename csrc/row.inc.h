/* Row form: all rows of the task, few, against one block of keys: keys are lanes of the
 * scores, head dimension those of the output. Keys and values are read once, a group of
 * rows at a time, from wherever they lie. Included by kernel.inc.h only. */

enum {
    KEY_GROUP = 16,   /* keys transposed, or values added, at a time */
    GROUPS_AHEAD = 2, /* how far reading is announced to the cache */
    CACHE_LINE = 64   /* bytes */
};

/* KEY_GROUP rows of key or value that will be wanted soon; at is NULL for none. */
typedef struct {
    const char *at;
    ptrdiff_t row;   /* bytes from row to row */
    ptrdiff_t bytes; /* of a row */
} soon;

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
    ptrdiff_t first =
        b->first + (ahead - (ahead < n_groups ? 0 : n_groups)) * KEY_GROUP;

    if (first + KEY_GROUP > w->to) {
        return (soon){NULL, 0, 0};
    }
    return (soon){base + first * array->row_stride, array->row_stride,
                  (value ? p->value_dim : p->head_dim) * array->column_stride};
}

/* Asks the second-level cache, for the first is too small, for the line at a byte offset
 * of each row. */
static INLINE void
prefetch_line(const soon *s, ptrdiff_t offset)
{
    for (ptrdiff_t i = 0; offset < s->bytes && i < KEY_GROUP; i++) {
        __builtin_prefetch(s->at + i * s->row + offset, 0, 2);
    }
}

/* sum[row][lane] += query[row][d] * key[lane][d] for the n dimensions d from `at` on that
 * the transposed vectors of k hold. */
static INLINE void
add_products(v_real *sum, const v_real *k, const int n, const int rows, const work *w,
             ptrdiff_t at)
{
    for (int i = 0; i < n; i++) {
        for (int r = 0; r < rows; r++) {
            v_real q = v_set1(w->query[r * w->p->head_dim + at + i]);
            sum[r] = v_fma(q, k[i], sum[r]);
        }
    }
}

/* scores[row][lane] = query[row] . keys[lane] for LANES keys, transposed in registers. */
static INLINE void
score_keys(const work *w, const real *const keys[LANES], const int rows, real *scores,
           const soon *next)
{
    ptrdiff_t head_dim = w->p->head_dim;
    ptrdiff_t d = 0;

    for (ptrdiff_t first = 0; first == 0 || first < head_dim; first += ATTN_DIM_BLOCK) {
        ptrdiff_t end = least(first + ATTN_DIM_BLOCK, head_dim);
        v_real sum[ROW_FORM_ROWS], k[LANES];
        for (int r = 0; r < rows; r++) {
            sum[r] = v_set1(0);
        }
        for (; d + LANES <= end; d += LANES) {
            prefetch_line(next, d * (ptrdiff_t)sizeof(real));
            for (int i = 0; i < LANES; i++) {
                k[i] = v_load(keys[i] + d);
            }
            v_transpose(k);
            add_products(sum, k, LANES, rows, w, d);
        }
        for (; d < end; d++) {
            real lanes[LANES];
            for (int i = 0; i < LANES; i++) {
                lanes[i] = keys[i][d];
            }
            k[0] = v_load(lanes);
            add_products(sum, k, 1, rows, w, d);
        }
        for (int r = 0; r < rows; r++) {
            real *at = scores + (ptrdiff_t)r * ATTN_BLOCK;
            v_store(at, first == 0 ? sum[r] : v_add(v_load(at), sum[r]));
        }
    }
}

static NOINLINE void
score_keys_of_rows(const work *w, const real *const keys[LANES], real *scores,
                   const soon *next)
{
    switch (w->task->n_rows) {
    case 1: score_keys(w, keys, 1, scores, next); break;
    case 2: score_keys(w, keys, 2, scores, next); break;
    case 3: score_keys(w, keys, 3, scores, next); break;
    case 4: score_keys(w, keys, 4, scores, next); break;
    case 5: score_keys(w, keys, 5, scores, next); break;
    case 6: score_keys(w, keys, 6, scores, next); break;
    case 7: score_keys(w, keys, 7, scores, next); break;
    default: score_keys(w, keys, 8, scores, next); break;
    }
}

/* Products of queries with the block's keys from k on, KEY_GROUP or as many as there are.
 * Lanes past the last key repeat it. */
static void
score_group(work *w, const block *b, ptrdiff_t k)
{
    const attn_problem *p = w->p;
    ptrdiff_t n = least(b->end - b->first - k, KEY_GROUP);
    matrix keys = fetch_rows(&p->key, w->task->key, b->first + k, n, p->head_dim,
                             p->head_dim, w->wide_key);
    soon next = look_ahead(w, b, k / KEY_GROUP);

    for (ptrdiff_t lane = 0; lane < n; lane += LANES) {
        const real *rows[LANES];
        for (ptrdiff_t i = 0; i < LANES; i++) {
            rows[i] = keys.at + least(lane + i, n - 1) * keys.row;
        }
        score_keys_of_rows(w, rows, w->scores + k + lane, &next);
        next.bytes = 0;
    }
}

/* S[row][key] for the block's keys; what is no key, up to whole vectors, is -inf. */
static void
score_rows(work *w, const block *b)
{
    ptrdiff_t n_keys = b->end - b->first;

    for (ptrdiff_t k = 0; k < n_keys; k += KEY_GROUP) {
        score_group(w, b, k);
    }
    finish_scores(&(strip){.at = w->scores,
                           .line = ATTN_BLOCK,
                           .bias = w->task->bias != NULL ? w->bias : NULL,
                           .bits = b->coverage == ATTN_SEE_SOME ? w->see[0] : NULL,
                           .bits_line = ATTN_BLOCK_WORDS,
                           .n_lines = w->task->n_rows,
                           .n_vec = (int)((n_keys + LANES - 1) / LANES)},
                  w->p->softcap);
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        for (ptrdiff_t k = n_keys; k < round_up(n_keys, LANES); k++) {
            w->scores[r * ATTN_BLOCK + k] = (real)-INFINITY;
        }
    }
}

/* As exponentiate_lanes, for rows that are lines; sums go over keys in order, too. */
static void
exponentiate_rows(work *w, ptrdiff_t n_keys)
{
    real top[WIDTH];
    partial *s = &w->chunk;

    for (ptrdiff_t r = 0; r < WIDTH; r++) {
        v_real line_top = v_set1((real)-INFINITY);
        for (ptrdiff_t k = 0; r < w->task->n_rows && k < n_keys; k += LANES) {
            line_top = v_max(v_load(w->scores + r * ATTN_BLOCK + k), line_top);
        }
        top[r] = v_reduce_max(line_top);
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r += LANES) {
        v_store(w->rescale + r, raise_max(s->max + r, v_load(top + r)));
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        v_real max = finite_floor(v_set1(s->max[r]));
        for (ptrdiff_t k = 0; k < n_keys; k += LANES) {
            v_store(line + k, exp_of(v_sub(v_load(line + k), max)));
        }
        real total = 0;
        for (ptrdiff_t k = 0; k < n_keys; k++) {
            total += line[k];
        }
        top[r] = total;
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r += LANES) {
        v_real before = v_load(s->sum + r);
        v_store(s->sum + r, v_fma(before, v_load(w->rescale + r), v_load(top + r)));
    }
}

/* Continues the block's sums of weighted values with its values from k on. */
static void
add_value_group(work *w, const block *b, ptrdiff_t k)
{
    const attn_problem *p = w->p;
    ptrdiff_t n = least(b->end - b->first - k, KEY_GROUP);
    matrix values = fetch_rows(&p->value, w->task->value, b->first + k, n, p->value_dim,
                               w->value_width, w->wide_value);
    soon next = look_ahead(w, b, (b->end - b->first + k + KEY_GROUP - 1) / KEY_GROUP);

    for (ptrdiff_t at = 0; at < next.bytes; at += CACHE_LINE) {
        prefetch_line(&next, at);
    }
    if (b->coverage == ATTN_SEE_ALL || all_finite(values, n, p->value_dim)) {
        multiply_few((product){.c = w->row_sums,
                               .c_row = w->value_width,
                               .a = {w->scores + k, ATTN_BLOCK},
                               .b = values,
                               .n_rows = w->task->n_rows,
                               .n_steps = n,
                               .resume = true},
                     w->value_width / LANES);
        return;
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        for (ptrdiff_t d = 0; d < p->value_dim; d++) {
            real *sum = w->row_sums + r * w->value_width + d;
            *sum = sum_seen_values(w, r, k, n, w->scores + r * ATTN_BLOCK + k, 1,
                                   values, d, *sum);
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

    score_rows(w, b);
    exponentiate_rows(w, n_keys);
    memset(w->row_sums, 0, (size_t)n_sums * sizeof(real));
    for (ptrdiff_t k = 0; k < n_keys; k += KEY_GROUP) {
        add_value_group(w, b, k);
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

    score_rows(w, b);
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        real *line = w->scores + r * ATTN_BLOCK;
        v_real max = v_set1(w->total.max[r]), inverse = v_set1(w->total.sum[r]);
        for (ptrdiff_t k = 0; k < n_keys; k += LANES) {
            v_store(line + k, weight_of(v_load(line + k), max, inverse));
        }
        store_row(w->task->weights + row_offset(w, weights, r) +
                      b->first * weights->column_stride,
                  weights->column_stride, line, n_keys, weights->dtype);
    }
}
