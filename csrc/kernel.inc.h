/* The algorithm for one task, once, in the vector vocabulary of vec/. A kernel_*.c file
 * sets KERNEL, PANEL_ROWS, TILE_VECTORS and TERMS, if not 1, includes a vocabulary, then
 * this. It knows nothing of batches, threads or Python; it cannot fail and allocates
 * nothing.
 *
 * Tile form: rows are lanes. A tile is WIDTH rows of the task; its scores are
 * S[key][lane], its output O[d][lane]. Row form, for the few rows of decoding: keys are
 * the lanes of S[row][key], head dimension those of O[row][d]. Both take the same
 * arithmetic steps in the same order for a row, so they give the same bits. */
#if REAL_BITS == 32
#define REAL_DTYPE ATTN_F32
#else
#define REAL_DTYPE ATTN_F64
#endif
#ifndef TERMS
#define TERMS 1 /* of an operand of the products */
#endif

extern const attn_kernel KERNEL;

static ptrdiff_t
round_up(ptrdiff_t n, ptrdiff_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static ptrdiff_t
least(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

static ptrdiff_t
most(ptrdiff_t a, ptrdiff_t b)
{
    return a > b ? a : b;
}

enum {
    CACHE_LINE = 64,      /* bytes */
    NEAR_BYTES = 1 << 20, /* of keys and values that stay in the second-level cache */
    KEY_GROUP = 16,       /* keys that row form takes at a time */
    SLAB_COLUMNS = 128,   /* of values that are converted at a time */
    DIM_STEPS = ATTN_DIM_BLOCK / TERMS,
    WIDTH = TILE_VECTORS * LANES,
    MAX_TILES = (ATTN_TASK_ROWS + WIDTH - 1) / WIDTH,
    SCORES = WIDTH > ATTN_FEW_ROWS ? WIDTH
                                   : ATTN_FEW_ROWS /* row form has BLOCK a row */
};

#include "math.inc.h"
#include "transfer.inc.h"

#include "operands.inc.h"

#include "product.inc.h"

/* A running softmax over keys for each row of the task: maximum and sum of exponentials,
 * and by tile the output not yet divided by the sum. */
typedef struct {
    real *max;               /* (rows) */
    real *sum;               /* (rows) */
    real *output[MAX_TILES]; /* (Dv, WIDTH) each */
    bool *empty;             /* (tiles) no key yet: output is not written */
} partial;

/* The block of keys first .. end - 1 at an absolute, constant position. */
typedef struct {
    ptrdiff_t first, end;
    attn_coverage coverage;
} block;

typedef struct {
    const attn_problem *p;
    const attn_task *task;
    bool row_form;
    bool reads_ahead; /* announces keys and values: no other task reads them first */
    bool ends_head;   /* announces those of the next head */
    int n_tiles;
    ptrdiff_t from, to;    /* keys that some row of the task may see */
    ptrdiff_t key_width;   /* operands of a row of query or key */
    ptrdiff_t value_width; /* Dv rounded up to whole vectors */
    real scale;            /* of the scores as they come out of the products */

    operand *query;   /* (tiles, key_width, WIDTH); row form: (rows, key_width) */
    partial chunk;    /* of the current chunk of keys */
    partial total;    /* of all chunks before it; in the end, sum holds its inverse */
    real *rows;       /* (LANES, SLAB_COLUMNS) rows that are not contiguous reals */
    real *scores;     /* (tiles, BLOCK, WIDTH); row form: (rows, BLOCK) */
    real *rescale;    /* (rows) what the last block multiplied sum and output by */
    operand *slab;    /* keys or values brought into contiguous operands */
    real *bias;       /* (rows, BLOCK), unless it is read where it lies */
    real *row_output; /* row form: (rows, value_width) the chunk's output */
    real *row_sums;   /* row form: likewise, of a block */
    const char *bias_rows[ATTN_TASK_ROWS]; /* of the array, from key 0 on */
    attn_key_bits see;
    uint64_t see_lanes[ATTN_BLOCK]; /* `see` transposed: bit r of [k] */
} work;

/* ---- Memory ------------------------------------------------------------------------- */

/* The next bytes at *offset of memory; only counts where memory is NULL. */
static void *
take_bytes(char *memory, size_t *offset, size_t bytes)
{
    size_t at = *offset;

    *offset += (bytes + ATTN_ALIGNMENT - 1) / ATTN_ALIGNMENT * ATTN_ALIGNMENT;
    return memory == NULL ? NULL : memory + at;
}

/* Likewise n reals. */
static real *
take(char *memory, size_t *offset, ptrdiff_t n)
{
    return take_bytes(memory, offset, (size_t)n * sizeof(real));
}

static void
take_partial(char *memory, size_t *offset, ptrdiff_t n_tiles, ptrdiff_t value_dim,
             partial *s)
{
    s->empty = take_bytes(memory, offset, MAX_TILES * sizeof(bool));
    s->max = take(memory, offset, n_tiles * WIDTH);
    s->sum = take(memory, offset, n_tiles * WIDTH);
    for (ptrdiff_t t = 0; t < n_tiles; t++) {
        s->output[t] = take(memory, offset, value_dim * WIDTH);
    }
}

/* ---- Rows and lanes of arrays -------------------------------------------------------- */

/* Are these columns contiguous reals? */
static bool
is_plain(const attn_array *array, ptrdiff_t n_columns)
{
    return array->dtype == REAL_DTYPE &&
           (array->column_stride == sizeof(real) || n_columns == 1);
}

/* Can rows of `dim` columns be read where they lie, in the way `kind`? */
static bool
reads_in_place(const attn_array *array, ptrdiff_t dim, storage kind)
{
    ptrdiff_t size = array->dtype <= ATTN_BF16 ? 2 : sizeof(real);

    return (array->column_stride == size || dim == 1) &&
           (kind != AS_OPERANDS ||
            (array->dtype == OPERAND_DTYPE && dim % TERMS == 0 &&
             array->row_stride % (ptrdiff_t)sizeof(operand) == 0));
}

/* Loads n rows of an array, n_columns of each, into a column of vectors of a tile:
 * to[k][lane] = operand k of rows[lane], times *scale unless that is NULL. `staging` is
 * (LANES, SLAB_COLUMNS). */
static void
load_lanes(const attn_array *array, const char *const rows[LANES], ptrdiff_t n,
           ptrdiff_t n_columns, real *staging, operand *to, const real *scale)
{
    bool plain = is_plain(array, n_columns);
    ptrdiff_t width = plain ? n_columns : SLAB_COLUMNS;
    const real *from[LANES] = {NULL};

    for (ptrdiff_t k = 0; k < n_columns; k += width) {
        ptrdiff_t n_now = least(n_columns - k, width);
        for (ptrdiff_t i = 0; i < n; i++) {
            const char *row = rows[i] + k * array->column_stride;
            from[i] = (const real *)(const void *)row;
            if (!plain) {
                real *staged = staging + i * SLAB_COLUMNS;
                stage_row((operand *)staged, row, array->column_stride, n_now,
                          array->dtype);
                from[i] = staged;
            }
        }
        transpose_in((real *)(to + k / TERMS * WIDTH), WIDTH, from, n,
                     (n_now + TERMS - 1) / TERMS, scale);
    }
}

/* The reverse, for reals: rows[lane][k] = from[k][lane]. */
static void
store_lanes(const attn_array *array, char *const rows[LANES], ptrdiff_t n,
            const real *from, ptrdiff_t n_columns, real *staging)
{
    bool plain = is_plain(array, n_columns);
    ptrdiff_t width = plain ? n_columns : SLAB_COLUMNS;
    real *to[LANES] = {NULL};

    for (ptrdiff_t k = 0; k < n_columns; k += width) {
        ptrdiff_t n_now = least(n_columns - k, width);
        ptrdiff_t at = k * array->column_stride;
        for (ptrdiff_t i = 0; i < n; i++) {
            to[i] = plain ? (real *)(void *)rows[i] : staging + i * SLAB_COLUMNS;
        }
        transpose_out(to, n, from + k * WIDTH, WIDTH, n_now);
        for (ptrdiff_t i = 0; i < n && !plain; i++) {
            store_row(rows[i] + at, array->column_stride, to[i], n_now, array->dtype);
        }
    }
}

/* ---- Workspaces --------------------------------------------------------------------- */

/* Rows of the largest task. */
static ptrdiff_t
most_rows(const attn_problem *p)
{
    return least(p->group * p->n_queries, attn_task_rows(p));
}

/* Rows that row form computes for a task of n_rows, the last of them for nothing. */
static ptrdiff_t
row_form_rows(ptrdiff_t n_rows)
{
    return n_rows <= 2 ? n_rows : n_rows <= 4 ? 4 : 8;
}

static ptrdiff_t
tiles_of(ptrdiff_t n_rows)
{
    return (n_rows + WIDTH - 1) / WIDTH;
}

/* Lays a task's work out behind itself in memory; returns the bytes that takes. With
 * memory NULL it does nothing else. */
static size_t
lay_out(const attn_problem *p, char *memory, work *w)
{
    ptrdiff_t group_rows = p->group * p->n_queries;
    ptrdiff_t n_rows = most_rows(p);
    ptrdiff_t n_tiles = tiles_of(n_rows);
    ptrdiff_t slab = ATTN_BLOCK * most(DIM_STEPS, SLAB_COLUMNS / TERMS);
    size_t size = 0;

    take_bytes(memory, &size, sizeof *w);
    w->row_form = group_rows <= ATTN_FEW_ROWS;
    w->key_width = (p->head_dim + TERMS - 1) / TERMS;
    w->value_width = w->row_form ? round_up(p->value_dim, LANES) : p->value_dim;
    w->scale = pending_scale(p);
    w->query = take_bytes(memory, &size,
                          (size_t)(w->key_width * n_tiles * WIDTH) * sizeof(operand));
    take_partial(memory, &size, n_tiles, p->value_dim, &w->chunk);
    take_partial(memory, &size, n_tiles, p->value_dim, &w->total);
    w->rows = take(memory, &size, LANES * SLAB_COLUMNS);
    w->scores = take(memory, &size, ATTN_BLOCK * most(n_tiles * WIDTH, SCORES));
    w->rescale = take(memory, &size, n_tiles * WIDTH);
    if (w->row_form) {
        slab = KEY_GROUP * most(w->key_width, w->value_width / TERMS);
        w->row_output = take(memory, &size, n_rows * w->value_width);
        w->row_sums = take(memory, &size, row_form_rows(n_rows) * w->value_width);
    }
    w->slab = take_bytes(memory, &size, (size_t)slab * sizeof(operand));
    if (p->bias.data != NULL) {
        w->bias = take(memory, &size, n_rows * ATTN_BLOCK);
    }
    return size;
}

static size_t
workspace_size(const attn_problem *p)
{
    work w;
    return lay_out(p, NULL, &w);
}

static size_t
partial_size(const attn_problem *p)
{
    size_t size = 0;
    partial s;

    take_partial(NULL, &size, tiles_of(most_rows(p)), p->value_dim, &s);
    return size;
}

/* ---- Rows --------------------------------------------------------------------------- */

/* Where a per-head, per-query array has row r of the task. */
static ptrdiff_t
row_offset(const work *w, const attn_array *array, ptrdiff_t r)
{
    ptrdiff_t row = w->task->first_row + r;
    ptrdiff_t n_queries = w->p->n_queries;
    return row / n_queries * array->head_stride + row % n_queries * array->row_stride;
}

static ptrdiff_t
tile_rows(const work *w, int tile)
{
    return least(w->task->n_rows - (ptrdiff_t)tile * WIDTH, WIDTH);
}

/* Vectors of a tile that hold rows; what lies beyond is never read. */
static int
tile_vectors(const work *w, int tile)
{
    return (int)((tile_rows(w, tile) + LANES - 1) / LANES);
}

/* The addresses of an array's rows from row r of the task on, as many as there are lanes or
 * rows left; returns how many. */
static ptrdiff_t
row_addresses(const work *w, const attn_array *array, const char *base, ptrdiff_t r,
              const char *rows[LANES])
{
    ptrdiff_t n = least(w->task->n_rows - r, LANES);

    for (ptrdiff_t i = 0; i < n; i++) {
        rows[i] = base + row_offset(w, array, r + i);
    }
    return n;
}

/* Stores n_columns of a column of vectors into the rows from r on of a result. */
static void
store_result(work *w, const attn_array *array, char *base, ptrdiff_t r,
             const real *from, ptrdiff_t n_columns)
{
    char *rows[LANES] = {NULL};
    ptrdiff_t n = least(w->task->n_rows - r, LANES);

    for (ptrdiff_t i = 0; i < n; i++) {
        rows[i] = base + row_offset(w, array, r + i);
    }
    store_lanes(array, rows, n, from, n_columns, w->rows);
}

static void
load_queries(work *w)
{
    const attn_problem *p = w->p;
    const attn_array *query = &p->query;
    ptrdiff_t n_rows = w->task->n_rows;
    real scale = (real)p->scale;

    for (ptrdiff_t r = 0; r < n_rows && !w->row_form; r += LANES) {
        operand *tile = w->query + r / WIDTH * WIDTH * w->key_width + r % WIDTH;
        const char *rows[LANES] = {NULL};
        ptrdiff_t n = row_addresses(w, query, w->task->query, r, rows);
        load_lanes(query, rows, n, p->head_dim, w->rows, tile,
                   TERMS == 1 ? &scale : NULL);
    }
    for (ptrdiff_t r = 0; r < row_form_rows(n_rows) && w->row_form; r++) {
        operand *to = w->query + r * w->key_width;
        memset(to, 0, (size_t)w->key_width * sizeof *to);
        if (r < n_rows) {
            stage_row(to, w->task->query + row_offset(w, query, r),
                      query->column_stride, p->head_dim, query->dtype);
            scale_row(to, w->key_width, p);
        }
    }
}

/* ---- Blocks of keys ----------------------------------------------------------------- */

/* Columns from `column` on, n_columns of them, of keys first .. first + n - 1 as rows of
 * operands: where they lie, if they are that, or brought into the slab. */
static matrix
fetch_keys(work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t column, ptrdiff_t n_columns)
{
    const attn_array *key = &w->p->key;
    const char *from =
        w->task->key + first * key->row_stride + column * key->column_stride;
    ptrdiff_t width = (n_columns + TERMS - 1) / TERMS;

    if (reads_in_place(key, w->p->head_dim, AS_OPERANDS)) {
        return (matrix){(const operand *)(const void *)from,
                        key->row_stride / (ptrdiff_t)sizeof(operand)};
    }
    for (ptrdiff_t j = 0; j < n; j++) {
        stage_row(w->slab + j * width, from + j * key->row_stride, key->column_stride,
                  n_columns, key->dtype);
    }
    return (matrix){w->slab, width};
}

/* n_columns of n rows of an array from an address on, TERMS rows making one row of
 * operands: where they lie, if they are that, or brought into the slab. There rows are
 * `width` long, what lies beyond the columns being 0. The array has dim columns. */
static matrix
fetch_rows(const attn_array *array, const char *from, ptrdiff_t n, ptrdiff_t dim,
           ptrdiff_t n_columns, ptrdiff_t width, operand *slab)
{
    if (TERMS == 1 && width == n_columns && reads_in_place(array, dim, AS_OPERANDS)) {
        return (matrix){(const operand *)(const void *)from,
                        array->row_stride / (ptrdiff_t)sizeof(operand)};
    }
    for (ptrdiff_t j = 0; j < n; j += TERMS, from += TERMS * array->row_stride) {
        operand *to = slab + j / TERMS * width;
        stage_rows(to, from, j + 1 < n ? from + array->row_stride : NULL,
                   array->column_stride, n_columns, array->dtype);
        memset(to + n_columns, 0, (size_t)(width - n_columns) * sizeof(operand));
    }
    return (matrix){slab, width};
}

/* Columns from `column` on of values first .. first + n - 1. */
static matrix
fetch_values(work *w, ptrdiff_t first, ptrdiff_t n, ptrdiff_t column,
             ptrdiff_t n_columns, ptrdiff_t width)
{
    const attn_array *value = &w->p->value;
    const char *from =
        w->task->value + first * value->row_stride + column * value->column_stride;

    return fetch_rows(value, from, n, w->p->value_dim, n_columns, width, w->slab);
}

/* x * 0 is 0 for finite x only. */
static bool
all_finite(matrix rows, ptrdiff_t n_rows, ptrdiff_t dim)
{
    v_real sum = v_set1(0);

    for (ptrdiff_t j = 0; j < n_rows; j++) {
        const operand *row = rows.at + j * rows.row;
        ptrdiff_t d = 0;
        for (; d + LANES <= dim; d += LANES) {
            sum = v_dot(v_load_operands(row + d), v_set1_operand(0), sum);
        }
        for (; d < dim; d++) {
            sum = v_dot(v_set1_operand(row[d]), v_set1_operand(0), sum);
        }
    }
    return v_bits_of(v_is_nan(sum)) == 0;
}

/* The block's bias of row r of the task: where it lies, if it can be read there, or where
 * load_bias brings it. Row form reads whole vectors, so that it has a copy always. */
static const real *
bias_row(const work *w, const block *b, ptrdiff_t r)
{
    const attn_array *bias = &w->p->bias;

    if (w->row_form || !is_plain(bias, w->p->n_keys)) {
        return w->bias + r * ATTN_BLOCK;
    }
    return (const real *)(const void *)(w->bias_rows[r] +
                                        b->first * (ptrdiff_t)sizeof(real));
}

/* Bit k is set where row[k] is -inf, for k < n <= 64. */
static uint64_t
find_minus_inf(const real *row, ptrdiff_t n)
{
    uint64_t bits = 0;
    ptrdiff_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        bits |= v_bits_of(v_less(v_load(row + k), v_set1(-REAL_MAX))) << k;
    }
    for (; k < n; k++) {
        bits |= (uint64_t)(row[k] < -REAL_MAX) << k;
    }
    return bits;
}

/* Loads the block's bias for each row. A key with bias -inf is one the row may not see. */
static void
load_bias(work *w, block *b)
{
    const attn_array *bias = &w->p->bias;
    ptrdiff_t n_keys = b->end - b->first;

    if (b->coverage == ATTN_SEE_ALL) {
        memset(w->see, 0xff, sizeof w->see);
    }
    for (ptrdiff_t r = 0; r < w->task->n_rows; r++) {
        const real *row = bias_row(w, b, r);
        real *copy = w->bias + r * ATTN_BLOCK;
        if (row == copy) {
            load_row(copy, w->bias_rows[r] + b->first * bias->column_stride,
                     bias->column_stride, n_keys, bias->dtype);
            memset(copy + n_keys, 0,
                   (size_t)(round_up(n_keys, LANES) - n_keys) * sizeof(real));
        }
        for (ptrdiff_t k = 0; k < n_keys; k += 64) {
            uint64_t hidden = find_minus_inf(row + k, least(n_keys - k, 64));
            if (hidden != 0) {
                w->see[r][k / 64] &= ~hidden;
                b->coverage = ATTN_SEE_SOME;
            }
        }
    }
}

/* Prepares the block at `first` of the task's keys; returns whether any row may see any
 * of it. */
static bool
open_block(work *w, ptrdiff_t first, block *b)
{
    const attn_problem *p = w->p;

    b->first = first;
    b->end = least(first + ATTN_BLOCK, w->to);
    b->coverage = attn_see_block(p, w->task, first, b->end - first, w->see);
    if (b->coverage == ATTN_SEE_NONE) {
        return false;
    }
    if (p->bias.data != NULL) {
        load_bias(w, b);
    }
    if (!w->row_form && b->coverage == ATTN_SEE_SOME) {
        attn_transpose_bits(w->see, b->end - first, w->see_lanes);
    }
    return true;
}

/* ---- Scores and softmax, the same for both forms ------------------------------------- */

/* A block's scores: lines of n_vec vectors; tile form has a line for each key, row form
 * one for each row. */
typedef struct {
    real *at;
    ptrdiff_t line;       /* reals from line to line */
    const real *bias;     /* of the same lines and vectors; or NULL */
    ptrdiff_t bias_line;  /* reals from line to line */
    const uint64_t *bits; /* what may be seen, from the first lane on; or NULL */
    ptrdiff_t bits_line;  /* words from line to line */
    ptrdiff_t first_bit;  /* of the first lane */
    ptrdiff_t n_lines;
    int n_vec;
} strip;

/* From products to logits: scale, softcap, bias, and -inf where a row may not see a key. */
static INLINE void
finish_scores(const strip *s, real scale, double softcap)
{
    v_real minus_inf = v_set1((real)-INFINITY);

    for (ptrdiff_t i = 0; i < s->n_lines; i++) {
        for (int v = 0; v < s->n_vec; v++) {
            ptrdiff_t at = i * s->line + v * LANES;
            v_real x = v_mul(v_load(s->at + at), v_set1(scale));
            if (softcap > 0) {
                v_real cap = v_set1((real)softcap);
                x = v_mul(cap, tanh_of(v_div(x, cap)));
            }
            if (s->bias != NULL) {
                x = v_add(x, v_load(s->bias + i * s->bias_line + v * LANES));
            }
            if (s->bits != NULL) {
                ptrdiff_t bit = s->first_bit + v * LANES;
                uint64_t word = s->bits[i * s->bits_line + bit / 64];
                x = v_select(v_mask_of(word >> (bit % 64)), x, minus_inf);
            }
            v_store(s->at + at, x);
        }
    }
}

/* The maximum that exponents are taken relative to: never -inf, which has no differences. */
static INLINE v_real
finite_floor(v_real max)
{
    return v_max(max, v_set1(-REAL_MAX));
}

/* Raises the running maxima of a vector of rows to at least `top`; sum and output so far
 * are to be multiplied by the result. */
static INLINE v_real
raise_max(real *max, v_real top)
{
    v_real before = v_load(max);
    v_real after = v_max(top, before);

    v_store(max, after);
    return exp_of(v_sub(before, finite_floor(after)));
}

/* start + the sum of weights[k] * values[k][d] over the steps k < n, of terms that a row
 * may see; the first is key `first` of the block. For values that are not finite: 0 * NaN
 * of a masked key must not come into the result. */
static real
sum_seen_values(const work *w, ptrdiff_t row, ptrdiff_t first, ptrdiff_t n,
                const operand *weights, ptrdiff_t step, matrix values, ptrdiff_t d,
                real start)
{
    v_real sum = v_set1(start);
    real lanes[LANES];

    for (ptrdiff_t k = 0; k < n; k++) {
        ptrdiff_t key = first + k * TERMS;
        operand value = keep_terms(values.at[k * values.row + d],
                                   w->see[row][key / 64] >> (key % 64));
        sum = v_dot(v_set1_operand(weights[k * step]), v_set1_operand(value), sum);
    }
    v_store(lanes, sum);
    return lanes[0];
}

/* Are scores logits already but for w->scale, which must not be negative then? */
static bool
are_plain_scores(const work *w)
{
    return w->task->bias == NULL && !(w->p->softcap > 0) && w->scale > 0;
}

/* The weight of a score, times scale its logit, in the final softmax; 0 for -inf whatever
 * the row holds. */
static INLINE v_real
weight_of(v_real score, real scale, v_real max, v_real inverse_sum)
{
    v_real weight = v_mul(exp_of(v_fms(score, v_set1(scale), max)), inverse_sum);

    weight = v_select(v_less(score, v_set1(-REAL_MAX)), v_set1(0), weight);
    return quiet_nan_or(weight);
}

#include "tile.inc.h"

#include "row.inc.h"

/* ---- Chunks ------------------------------------------------------------------------- */

static void
clear(partial *s, int n_tiles)
{
    for (int t = 0; t < n_tiles; t++) {
        s->empty[t] = true;
        for (int i = 0; i < WIDTH; i++) {
            s->max[t * WIDTH + i] = (real)-INFINITY;
            s->sum[t * WIDTH + i] = 0;
        }
    }
}

/* Adds the chunk's partial of a tile to the total. Source of the formula: Dao et al.,
 * FlashAttention, 2022, section 3.1. */
static void
merge_tile(work *w, int tile)
{
    real *total = w->total.output[tile];
    real *chunk = w->chunk.output[tile];
    int n_vec = tile_vectors(w, tile);

    if (w->chunk.empty[tile]) {
        return;
    }
    for (int v = 0; v < n_vec; v++) {
        ptrdiff_t lane = (ptrdiff_t)tile * WIDTH + v * LANES;
        v_real chunk_max = v_load(w->chunk.max + lane);
        v_real old = raise_max(w->total.max + lane, chunk_max);
        v_real max = finite_floor(v_load(w->total.max + lane));
        v_real new = exp_of(v_sub(chunk_max, max));
        v_real sum = v_mul(v_load(w->total.sum + lane), old);
        v_store(w->total.sum + lane, v_fma(v_load(w->chunk.sum + lane), new, sum));
        if (w->total.empty[tile]) {
            continue;
        }
        for (ptrdiff_t d = 0; d < w->p->value_dim; d++) {
            real *at = total + d * WIDTH + v * LANES;
            v_real x = v_load(chunk + d * WIDTH + v * LANES);
            v_store(at, v_fma(x, new, v_mul(v_load(at), old)));
        }
    }
    if (w->total.empty[tile]) { /* 0 * old + chunk * 1 is the chunk */
        memcpy(total, chunk, (size_t)(w->p->value_dim * WIDTH) * sizeof(real));
        w->total.empty[tile] = false;
    }
}

static void
merge_chunk(work *w)
{
    for (int t = 0; t < w->n_tiles; t++) {
        merge_tile(w, t);
    }
}

/* Attends to the keys of the chunk that begins at `first`. */
static void
attend_to_chunk(work *w, ptrdiff_t first, attn_control *control, bool is_caller)
{
    block b;

    clear(&w->chunk, w->n_tiles);
    for (ptrdiff_t end = least(first + ATTN_CHUNK, w->to); first < end;
         first += ATTN_BLOCK) {
        if (first + ATTN_BLOCK <= w->from || attn_should_stop(control, is_caller) ||
            !open_block(w, first, &b)) {
            continue;
        }
        if (w->row_form) {
            attend_rows(w, &b);
        } else {
            attend_tiles(w, &b);
        }
    }
    if (w->row_form) {
        rows_to_tile(w);
    }
}

/* ---- Results ------------------------------------------------------------------------ */

/* Takes the sinks into the total and turns sums into what output and weights are to be
 * multiplied by: output_factor for rows of output, total.sum for weights relative to
 * total.max. Writes the LSE, max + log(sum). Rows that saw nothing have sum 0. */
static void
finish_sums(work *w, real *output_factor)
{
    const attn_problem *p = w->p;
    real sink[LANES];
    real max[LANES], sum[LANES];

    for (ptrdiff_t r = 0; r < w->task->n_rows; r += LANES) {
        ptrdiff_t n = least(w->task->n_rows - r, LANES);
        v_mask seen_none = v_less(v_load(w->total.sum + r), v_set1((real)0.5));
        v_real factor = v_set1(1);
        v_real all = v_load(w->total.sum + r);
        if (w->task->sinks != NULL) {
            for (ptrdiff_t i = 0; i < LANES; i++) {
                ptrdiff_t head =
                    (w->task->first_row + r + least(i, n - 1)) / p->n_queries;
                const char *from = w->task->sinks + head * p->sinks.head_stride;
                sink[i] = load_element(from, p->sinks.dtype);
            }
            factor = raise_max(w->total.max + r, v_load(sink));
            v_real top = finite_floor(v_load(w->total.max + r));
            all = v_fma(all, factor, exp_of(v_sub(v_load(sink), top)));
        }
        v_store(max, v_load(w->total.max + r));
        v_store(sum, all);
        v_real inverse = v_div(v_set1(1), all);
        inverse = v_select(seen_none, v_set1(0), inverse);
        v_store(w->total.sum + r, inverse);
        v_store(output_factor + r, v_mul(factor, inverse));
        v_store(w->total.max + r, finite_floor(v_load(max)));
        for (ptrdiff_t i = 0; i < n && w->task->lse != NULL; i++) {
            real lse = sum[i] == 0 ? (real)-INFINITY
                                   : (real)((double)max[i] + log_of((double)sum[i]));
            lse = sum[i] != sum[i] ? (real)NAN : lse + 0;
            memcpy(w->task->lse + row_offset(w, &p->lse, r + i), &lse, sizeof lse);
        }
    }
}

static void
write_output(work *w, const real *factor)
{
    const attn_problem *p = w->p;

    for (ptrdiff_t r = 0; r < w->task->n_rows; r += LANES) {
        ptrdiff_t tile = r / WIDTH;
        real *lanes = w->total.output[tile] + r % WIDTH;
        v_real f = v_load(factor + r);
        v_real inverse = v_load(w->total.sum + r);
        uint64_t seen =
            v_bits_of(v_less(v_set1(0), inverse)) | v_bits_of(v_is_nan(inverse));
        for (ptrdiff_t d = 0; d < p->value_dim; d++) {
            v_real x = v_mul(v_load(lanes + d * WIDTH), f);
            x = v_select(v_mask_of(seen), quiet_nan_or(x), v_set1(0));
            v_store(lanes + d * WIDTH, v_add(x, v_set1(0))); /* -0 becomes 0 */
        }
        store_result(w, &p->output, w->task->output, r, lanes, p->value_dim);
    }
}

static void
write_weights(work *w, attn_control *control, bool is_caller)
{
    block b;

    for (ptrdiff_t first = w->from / ATTN_BLOCK * ATTN_BLOCK; first < w->to;
         first += ATTN_BLOCK) {
        if (attn_should_stop(control, is_caller)) {
            return;
        }
        if (!open_block(w, first, &b)) {
            continue;
        }
        if (w->row_form) {
            write_row_weights(w, &b);
        } else {
            write_tile_weights(w, &b);
        }
    }
}

/* Writes the results, once every chunk is in the total. */
static void
close_task(work *w, attn_control *control, bool is_caller)
{
    real output_factor[MAX_TILES * WIDTH];

    finish_sums(w, output_factor);
    write_output(w, output_factor);
    if (w->task->weights != NULL) {
        write_weights(w, control, is_caller);
    }
}

/* Will keys and values come from beyond the second-level cache? Announcing what is there
 * already costs up to 20 %; not announcing what is not, half of the speed (benchmarks, group
 * decode). */
static bool
is_far(const attn_problem *p)
{
    double row = (double)(p->head_dim * p->key.column_stride) +
                 (double)(p->value_dim * p->value.column_stride);
    double rows = (double)p->n_batch * (double)p->n_kv_heads * (double)p->n_keys;

    return rows * row > NEAR_BYTES;
}

/* ---- Entry points ------------------------------------------------------------------- */

/* Makes the task ready to attend in a workspace, where its `work` comes first. */
static work *
open_task(const attn_problem *p, const attn_task *task, void *memory)
{
    work *w = memory;
    ptrdiff_t group_rows = p->group * p->n_queries;

    w->p = p;
    w->task = task;
    w->n_tiles = (int)tiles_of(task->n_rows);
    w->reads_ahead = is_far(p) && group_rows <= ATTN_TASK_ROWS;
    w->ends_head = is_far(p) && task->first_row + task->n_rows == group_rows;
    w->from = p->n_keys;
    w->to = 0;
    for (ptrdiff_t r = 0; r < task->n_rows; r++) {
        if (task->see_from[r] < task->see_to[r]) {
            w->from = least(w->from, task->see_from[r]);
            w->to = most(w->to, task->see_to[r]);
        }
    }
    lay_out(p, memory, w);
    load_queries(w);
    for (ptrdiff_t r = 0; r < task->n_rows && task->bias != NULL; r++) {
        w->bias_rows[r] = task->bias + row_offset(w, &p->bias, r);
    }
    clear(&w->total, w->n_tiles);
    return w;
}

static void
run(const attn_problem *p, const attn_task *task, void *memory, attn_control *control,
    bool is_caller)
{
    work *w = open_task(p, task, memory);
    ptrdiff_t first = w->from / ATTN_CHUNK * ATTN_CHUNK;

    if (first < w->to && w->to <= first + ATTN_CHUNK) { /* nothing to merge */
        attend_to_chunk(w, first, control, is_caller);
        w->total = w->chunk;
        first = w->to;
    }
    for (; first < w->to; first += ATTN_CHUNK) {
        if (attn_should_stop(control, is_caller)) {
            return; /* the call has failed: nobody looks at the results */
        }
        attend_to_chunk(w, first, control, is_caller);
        merge_chunk(w);
    }
    close_task(w, control, is_caller);
}

static void
run_chunk(const attn_problem *p, const attn_task *task, ptrdiff_t first_key,
          void *memory, void *to, attn_control *control, bool is_caller)
{
    work *w = open_task(p, task, memory);
    size_t size = 0;

    take_partial(to, &size, w->n_tiles, p->value_dim, &w->chunk);
    attend_to_chunk(w, first_key, control, is_caller);
}

static void
begin_merge(const attn_problem *p, const attn_task *task, void *memory)
{
    open_task(p, task, memory);
}

static void
merge(void *memory, void *from)
{
    work *w = memory;
    size_t size = 0;

    take_partial(from, &size, w->n_tiles, w->p->value_dim, &w->chunk);
    merge_chunk(w);
}

static void
end_merge(void *memory, attn_control *control)
{
    work *w = memory;

    lay_out(w->p, memory, w);
    close_task(w, control, true);
}

#include "linear.inc.h"

#include "norm.inc.h"

#include "rows.inc.h"

const attn_kernel KERNEL = {
    .workspace_size = workspace_size,
    .partial_size = partial_size,
    .run = run,
    .run_chunk = run_chunk,
    .begin_merge = begin_merge,
    .merge = merge,
    .end_merge = end_merge,
    .linear_workspace_size = linear_workspace_size,
    .run_linear = run_linear,
    .normalize = normalize,
    .activate = activate_all,
    .load_row = load_any_row,
    .store_row = store_any_row,
};
