/* A task's work in the forward pass: its running softmax, and the memory for all. */
#ifndef ATTN_KERNEL_ATTENTION_TASK_H
#define ATTN_KERNEL_ATTENTION_TASK_H

#include "core/arrangement.h"
#include "core/tuning.h"
#include "core/workspace.h"
#include "kernel/arena.h"
#include "kernel/attention/rows.h"
#include "kernel/operands/matrix.h"

/* A running softmax over keys for each row of the task: maximum and sum of exponentials,
 * and by tile the output not yet divided by the sum. */
typedef struct {
    real *max;               /* (rows) */
    real *sum;               /* (rows) */
    real *output[MAX_TILES]; /* (Dv, WIDTH) each */
    bool *empty;             /* (tiles) no key yet: output is not written */
} partial;

/* Statistics of the task's rows so far; core/statistics.h says of what. */
typedef struct {
    double positions[ATTN_TASK_ROWS]; /* of queries */
    double log_sums[ATTN_TASK_ROWS], distances[ATTN_TASK_ROWS];
    real least_top[ATTN_TASK_ROWS]; /* the least of a row's largest weights */
} row_statistics;

/* Blocks of a head whose keys or values an earlier task of the thread has prepared, as rows of
 * operands or as tiles of a matrix unit, and kept in its workspace. */
typedef struct {
    const char *key, *value; /* the head's; NULL at the beginning of a call */
    ptrdiff_t batch;
    uint64_t has_keys, has_values; /* a bit for each block */
    uint64_t
        not_finite; /* a bit for each block of values of which one is not finite: unused */
} kept_blocks;

enum {
    MOST_KEPT_BLOCKS = 64, /* at most */
    KEPT_BYTES = 1 << 20   /* of a workspace, so that the pool keeps it */
};

_Static_assert(sizeof(kept_blocks) <= ATTN_CLEAR_BYTES,
               "a workspace begins with zeros");

typedef struct {
    kept_blocks kept; /* first: it stays from task to task */
    ptrdiff_t kept_value_blocks, kept_key_blocks; /* that have a place */
    operand *kept_values; /* (kept_value_blocks, Dv, BLOCK / TERMS) */
    operand *kept_keys;   /* (kept_key_blocks, BLOCK, key_width) */
    task_rows rows;
    /* How keys and values come into the caches: choose_prefetches() */
    bool reads_ahead; /* prefetches the next block, or group of keys */
    /* Row form: prefetches only shortly before reading, since no other task reads the same, into
     * all caches or into the first alone. */
    bool reads_once;
    bool keeps_lines; /* into all caches */
    int unit_columns; /* row form: columns of a matrix unit's tiles of sums, 0 without tiles */
    /* Row form: reads a group of rows in the order of memory first, since CPUs do not prefetch rows
     * that are read side by side. */
    bool reads_bursts;
    bool ends_head; /* prefetches the first block of the next head, too */
    ptrdiff_t
        values_prefetched; /* key of the block whose values were prefetched already */
    ptrdiff_t value_width; /* Dv rounded up to whole vectors */
    real scale;            /* of the scores as they come out of the products */
    partial chunk;         /* of the current chunk of keys */
    partial total;      /* of all chunks before it; in the end, sum holds its inverse */
    real *scores;       /* (tiles, BLOCK, WIDTH); row form: (rows, BLOCK) */
    real *chunk_scores; /* (CHUNK / BLOCK, ...): those of all blocks of a chunk */
    ptrdiff_t scored_from, scored_to; /* keys that are scored before values are read */
    bool has_scores;                  /* products with the chunk's keys are there */
    real *rescale;    /* (rows) what the last block multiplied sum and output by */
    real *row_output; /* row form: (rows, value_width) the chunk's output */
    real *row_sums;   /* row form: (rows, value_width) the output of a block */
    row_statistics *statistics; /* while they are measured */
} work;

static void
take_partial(arena *a, ptrdiff_t n_tiles, ptrdiff_t value_dim, partial *s)
{
    s->empty = arena_take(a, MAX_TILES * sizeof(bool));
    s->max = arena_reals(a, n_tiles * WIDTH);
    s->sum = arena_reals(a, n_tiles * WIDTH);
    for (ptrdiff_t t = 0; t < n_tiles; t++) {
        s->output[t] = arena_reals(a, value_dim * WIDTH);
    }
}

/* Bytes of a block of keys, or values, that are brought into rows whose columns are adjacent. */
static ptrdiff_t
gathered_bytes(const attn_array *array, ptrdiff_t dim)
{
    return are_integers(array) && !are_shorts(array) && array->column_stride != 1
               ? ATTN_BLOCK * dim
               : 0;
}

/* May tasks keep rows that vector products do not read where they lie? With AVX-512 these take half
 * of the second-level cache of the CPUs that pair tiles; on others this was not measured. */
enum { KEEPS_ROWS = REAL_BITS == 32 && LANES >= 8 && TERMS == 1 };

/* Room for blocks that are kept: first for all blocks of values that fit, then for blocks of keys.
 * Whole tiles of keys of 64 dimensions are read as fast where they lie. The size of the room does not
 * depend on the number of keys, only how it is divided. */
static void
lay_out_kept(const attn_problem *p, arena *a, work *w)
{
    ptrdiff_t bytes = KEPT_BYTES - CACHE_LINE - (ptrdiff_t)a->used;
    bool wants_values =
        HAS_UNIT || !reads_in_place(&p->value, p->value_dim, AS_OPERANDS);
    ptrdiff_t values =
        wants_values ? round_up(p->value_dim, LANES) * ATTN_BLOCK / TERMS : 0;
    ptrdiff_t n = least((p->n_keys + ATTN_BLOCK - 1) / ATTN_BLOCK, MOST_KEPT_BLOCKS);
    bool is_slow = p->head_dim > ATTN_DIM_BLOCK || p->head_dim % SUM_TERMS != 0;
    bool wants_keys = HAS_UNIT
                          ? is_slow && most(p->head_dim, p->value_dim) <= SLAB_COLUMNS
                          : !reads_in_place(&p->key, p->head_dim, AS_OPERANDS);
    ptrdiff_t keys = wants_keys ? w->rows.key_width * ATTN_BLOCK : 0;
    ptrdiff_t room = least(most(bytes, 0) / (ptrdiff_t)sizeof(operand),
                           MOST_KEPT_BLOCKS * (values + keys));

    w->kept_value_blocks = values > 0 ? least(room / values, n) : 0;
    w->kept_values =
        arena_take(a, (size_t)(w->kept_value_blocks * values) * sizeof(operand));
    room -= w->kept_value_blocks * values;
    w->kept_key_blocks = keys > 0 ? least(room / keys, n) : 0; /* D may be 0 */
    w->kept_keys = arena_take(a, (size_t)room * sizeof(operand));
}

/* Lays out the memory of a task of a group with group_rows rows, behind its work; returns the bytes
 * it takes. With memory NULL it only counts them. */
static size_t
lay_out_attention(const attn_problem *p, ptrdiff_t group_rows, char *memory, work *w)
{
    arena a = {memory, 0};
    ptrdiff_t n_rows = least(group_rows, p->task_rows);
    ptrdiff_t n_tiles = tiles_of(n_rows);
    ptrdiff_t slab = ATTN_BLOCK * most(DIM_STEPS, SLAB_COLUMNS / TERMS);

    arena_take(&a, sizeof *w);
    w->rows.row_form = attn_takes_row_form(p, group_rows);
    w->rows.key_width =
        round_up(p->head_dim, are_integers(&p->key) ? ATTN_CODE_UNIT : SUM_TERMS) /
        TERMS;
    w->value_width = w->rows.row_form ? round_up(p->value_dim, LANES) : p->value_dim;
    w->scale = pending_scale((real)p->scale);
    w->rows.query =
        arena_take(&a, (size_t)(w->rows.key_width * n_tiles * WIDTH) * sizeof(operand));
    if (are_integers(&p->key) && !w->rows.row_form) {
        w->rows.pairs = arena_reals(&a, w->rows.key_width / 2 * n_tiles * WIDTH);
    }
    take_partial(&a, n_tiles, p->value_dim, &w->chunk);
    take_partial(&a, n_tiles, p->value_dim, &w->total);
    w->rows.staging = arena_reals(&a, LANES * SLAB_COLUMNS);
    ptrdiff_t chunk_rows = w->rows.row_form ? row_form_rows(n_rows) : 0;
    if (HAS_BYTE_UNIT && !w->rows.row_form && are_integers(&p->key)) {
        chunk_rows = WIDTH;
    }
    w->scores =
        arena_reals(&a, most(ATTN_BLOCK * n_tiles * WIDTH, ATTN_CHUNK * chunk_rows));
    w->chunk_scores = w->scores;
    w->has_scores = false;
    w->rescale = arena_reals(&a, n_tiles * WIDTH);
    if (w->rows.row_form) {
        slab = most(KEY_GROUP * most(w->rows.key_width, w->value_width / TERMS),
                    LEAST_SLAB);
        w->row_output = arena_reals(&a, n_rows * w->value_width);
        w->row_sums = arena_reals(&a, row_form_rows(n_rows) * w->value_width);
    }
    slab = most(slab, most(gathered_bytes(&p->key, p->head_dim),
                           gathered_bytes(&p->value, p->value_dim)) /
                          (ptrdiff_t)sizeof(operand));
    w->rows.slab = arena_take(&a, (size_t)slab * sizeof(operand));
    if (p->bias.data != NULL) {
        w->rows.bias = arena_reals(&a, n_rows * ATTN_BLOCK);
    }
    w->kept_value_blocks = w->kept_key_blocks = 0;
    bool keeps = KEEPS_ROWS && !are_integers(&p->key) &&
                 (LANES == 8 || attn_get_tuning(ATTN_TUNE_PAIR_TILES));
    if ((HAS_UNIT || keeps) && !w->rows.row_form) {
        lay_out_kept(p, &a, w);
    }
    return a.used;
}

static size_t
attention_workspace_size(const attn_problem *p)
{
    work w;
    ptrdiff_t group_rows = p->group * p->n_queries;
    size_t size = lay_out_attention(p, group_rows, NULL, &w);

    if (attn_query_starts(p->packed) != NULL &&
        !w.rows.row_form) { /* which shorter sequences take */
        size_t row_form_size = lay_out_attention(p, ATTN_FEW_ROWS, NULL, &w);
        return row_form_size > size ? row_form_size : size;
    }
    return size;
}

static size_t
partial_size(const attn_problem *p)
{
    arena a = {NULL, 0};
    partial s;

    take_partial(&a, tiles_of(least(p->group * p->n_queries, p->task_rows)),
                 p->value_dim, &s);
    return a.used;
}

#endif
