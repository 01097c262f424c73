/* Which keys a row may see, against loops over every key. */
#include "core/visibility.h"

#include "support/check.h"

#include <string.h>

/* Sums of a few int64_t; ISO C has no name for it. */
__extension__ typedef __int128 wide;

static const int64_t offsets[] = {
    INT64_MIN, INT64_MIN + 1, -1000000,      -7,       -1, 0, 1, 5,
    300,       1000,          INT64_MAX - 1, INT64_MAX};
static const int64_t windows[] = {-1, -1, 0, 1, 5, 130, INT64_MAX - 1, INT64_MAX};

#define COUNT(array) (ptrdiff_t)(sizeof(array) / sizeof((array)[0]))

/* The definition: key j against the row's position. */
static bool
in_reach(const attn_problem *p, int64_t q_offset, int64_t kv_length, ptrdiff_t row,
         ptrdiff_t j)
{
    wide position = (wide)q_offset + row % p->n_queries;
    bool seen = j < kv_length;

    seen = seen && (!p->causal || j <= position);
    seen = seen && (p->window_left < 0 || j >= position - p->window_left);
    return seen && (p->window_right < 0 || j <= position + p->window_right);
}

static void
expect_ranges(const attn_problem *p, const attn_task *task, int64_t q_offset,
              int64_t kv_length)
{
    for (ptrdiff_t r = 0; r < task->n_rows; r++) {
        ptrdiff_t row = task->first_row + r;
        ptrdiff_t from = task->see_from[r], to = task->see_to[r];
        bool right = from < to || (from == 0 && to == 0);
        for (ptrdiff_t j = 0; j < p->n_keys; j++) {
            right = right &&
                    in_reach(p, q_offset, kv_length, row, j) == (from <= j && j < to);
        }
        expect(right,
               "row %td of %td queries, %td keys, offset %lld, length %lld, causal %d, "
               "window %lld, %lld: sees %td .. %td",
               row, p->n_queries, p->n_keys, (long long)q_offset, (long long)kv_length,
               p->causal, (long long)p->window_left, (long long)p->window_right, from,
               to);
    }
}

void
test_ranges_are_those_of_the_definition(void)
{
    uint64_t state = 1;
    attn_problem p = {.n_kv_heads = 1};
    attn_task task;

    for (int n = 0; n < 20000; n++) {
        p.n_queries = task.n_queries = 1 + random_below(&state, 90);
        p.group = 1 + random_below(&state, 3);
        p.n_keys = random_below(&state, 200);
        p.causal = random_below(&state, 2) == 0;
        p.window_left = windows[random_below(&state, COUNT(windows))];
        p.window_right = windows[random_below(&state, COUNT(windows))];
        task.first_row = random_below(&state, p.n_queries * p.group);
        task.n_rows = 1 + random_below(&state, 3);
        int64_t offset = offsets[random_below(&state, COUNT(offsets))];
        int64_t length = random_below(&state, p.n_keys + 1);
        attn_see_ranges(&p, offset, length, &task);
        expect_ranges(&p, &task, offset, length);
    }
}

/* Queries of one head that see some key of a range, by the definition, are those said to. */
static void
expect_seeing(const attn_problem *p, const attn_task *task, ptrdiff_t first,
              ptrdiff_t end)
{
    ptrdiff_t from, to, n_wrong = 0;

    attn_seeing_queries(p, task, first, end, &from, &to);
    for (ptrdiff_t i = 0; i < task->n_queries; i++) {
        bool sees = false;
        for (ptrdiff_t j = first; j < end; j++) {
            sees = sees || in_reach(p, task->q_offset, task->kv_length, i, j);
        }
        n_wrong += sees != (from <= i && i < to);
    }
    expect(
        n_wrong == 0 && (from < to || (from == 0 && to == 0)),
        "keys %td .. %td of %lld, offset %lld, causal %d, window %lld, %lld: seen by "
        "%td .. %td of %td queries, %td wrong",
        first, end, (long long)task->kv_length, (long long)task->q_offset, p->causal,
        (long long)p->window_left, (long long)p->window_right, from, to,
        task->n_queries, n_wrong);
}

void
test_queries_that_see_keys_are_those_of_the_definition(void)
{
    uint64_t state = 4;
    attn_problem p = {.n_kv_heads = 1, .group = 1};
    attn_task task;

    for (int n = 0; n < 20000; n++) {
        p.n_queries = task.n_queries = 1 + random_below(&state, 90);
        p.n_keys = random_below(&state, 200);
        p.causal = random_below(&state, 2) == 0;
        p.window_left = windows[random_below(&state, COUNT(windows))];
        p.window_right = windows[random_below(&state, COUNT(windows))];
        task.q_offset = random_below(&state, 2) == 0
                            ? offsets[random_below(&state, COUNT(offsets))]
                            : random_below(&state, 400) - 200;
        task.kv_length = random_below(&state, p.n_keys + 1);
        ptrdiff_t first = random_below(&state, p.n_keys + 1);
        expect_seeing(&p, &task, first,
                      first + random_below(&state, p.n_keys + 1 - first));
    }
}

/* Random ranges, as attn_see_ranges may give them; often all or none of the block. */
static void
draw_ranges(uint64_t *state, ptrdiff_t n_keys, attn_task *task)
{
    ptrdiff_t kind = random_below(state, 3);

    for (ptrdiff_t r = 0; r < task->n_rows; r++) {
        ptrdiff_t from = kind == 0 ? 0 : random_below(state, n_keys);
        ptrdiff_t to = kind == 0 ? n_keys : random_below(state, n_keys + 1);
        task->see_from[r] = from < to ? from : 0;
        task->see_to[r] = from < to ? to : 0;
    }
}

/* A mask of (G, Lq, Lk) bytes in `bytes`, with every kind of stride, often all true. */
static void
draw_mask(uint64_t *state, char *bytes, ptrdiff_t size, attn_problem *p,
          attn_task *task)
{
    static const char values[] = {0, 1, (char)0x80, (char)0xff};
    ptrdiff_t steps[] = {0, 1, 1, 1, -1, 3};
    ptrdiff_t step = steps[random_below(state, COUNT(steps))];
    ptrdiff_t row = step == 0 ? 1 : p->n_keys * (step < 0 ? -step : step);
    ptrdiff_t start = step < 0 ? p->n_keys - 1 : 0;
    bool dense = random_below(state, 3) == 0;

    for (ptrdiff_t i = 0; i < size; i++) {
        bytes[i] = dense ? 1 : values[random_below(state, COUNT(values))];
    }
    p->mask = (attn_array){.data = bytes,
                           .head_stride = random_below(state, 2) * row * p->n_queries,
                           .row_stride = random_below(state, 2) * row,
                           .column_stride = step};
    task->mask = bytes + start;
}

static bool
block_sees(const attn_problem *p, const attn_task *task, ptrdiff_t r, ptrdiff_t j)
{
    ptrdiff_t row = task->first_row + r;
    bool seen = r < task->n_rows && task->see_from[r] <= j && j < task->see_to[r];

    if (!seen || task->mask == NULL) {
        return seen;
    }
    return task->mask[row / p->n_queries * p->mask.head_stride +
                      row % p->n_queries * p->mask.row_stride +
                      j * p->mask.column_stride] != 0;
}

static void
expect_block(const attn_problem *p, const attn_task *task, ptrdiff_t first,
             ptrdiff_t n_keys)
{
    attn_key_bits keys;
    ptrdiff_t n_seen = 0, n_wrong = 0;

    memset(keys, 0x5a, sizeof keys);
    attn_coverage coverage = attn_see_block(p, task, first, n_keys, keys);
    for (ptrdiff_t r = 0; r < ATTN_TASK_ROWS; r++) {
        for (ptrdiff_t k = 0; k < ATTN_BLOCK; k++) {
            bool seen = k < n_keys && block_sees(p, task, r, first + k);
            n_seen += seen;
            n_wrong += seen != (bool)(keys[r][k / 64] >> (k % 64) & 1);
        }
    }
    attn_coverage right = n_seen == 0                       ? ATTN_SEE_NONE
                          : n_seen == n_keys * task->n_rows ? ATTN_SEE_ALL
                                                            : ATTN_SEE_SOME;
    expect(coverage == right, "coverage %d where it is %d", coverage, right);
    expect(coverage == ATTN_SEE_ALL || n_wrong == 0, "%td bits are wrong", n_wrong);
}

void
test_blocks_of_keys_are_those_of_the_definition(void)
{
    enum { MAX_QUERIES = 40, MAX_GROUP = 2, MAX_KEYS = 3 * ATTN_BLOCK };
    static char bytes[MAX_QUERIES * MAX_GROUP * MAX_KEYS * 3];
    uint64_t state = 2;
    attn_problem p = {.n_kv_heads = 1};
    attn_task task;

    for (int n = 0; n < 1000; n++) {
        p.n_queries = task.n_queries = 1 + random_below(&state, MAX_QUERIES);
        p.group = 1 + random_below(&state, MAX_GROUP);
        p.n_keys = 1 + random_below(&state, MAX_KEYS);
        ptrdiff_t n_rows = p.n_queries * p.group;
        task.first_row = n_rows > ATTN_TASK_ROWS ? ATTN_TASK_ROWS : 0;
        task.n_rows = n_rows - task.first_row;
        task.n_rows = task.n_rows < ATTN_TASK_ROWS ? task.n_rows : ATTN_TASK_ROWS;
        task.mask = NULL;
        draw_ranges(&state, p.n_keys, &task);
        if (random_below(&state, 2) == 0) {
            draw_mask(&state, bytes, (ptrdiff_t)sizeof bytes, &p, &task);
        }
        for (ptrdiff_t first = 0; first < p.n_keys; first += ATTN_BLOCK) {
            ptrdiff_t n_keys = p.n_keys - first;
            n_keys = n_keys < ATTN_BLOCK ? n_keys : ATTN_BLOCK;
            expect_block(&p, &task, first, n_keys);
        }
    }
}

void
test_bits_are_transposed(void)
{
    uint64_t state = 3;
    attn_key_bits keys;
    uint64_t rows[ATTN_BLOCK];

    for (int n = 0; n < 20; n++) {
        ptrdiff_t n_wrong = 0;
        for (int r = 0; r < ATTN_TASK_ROWS; r++) {
            for (int w = 0; w < ATTN_BLOCK_WORDS; w++) {
                keys[r][w] = random_bits(&state);
            }
        }
        attn_transpose_bits((const uint64_t (*)[ATTN_BLOCK_WORDS])keys, ATTN_BLOCK,
                            rows);
        for (int r = 0; r < ATTN_TASK_ROWS; r++) {
            for (int k = 0; k < ATTN_BLOCK; k++) {
                n_wrong += (rows[k] >> r & 1) != (keys[r][k / 64] >> (k % 64) & 1);
            }
        }
        expect(n_wrong == 0, "%td bits are wrong", n_wrong);
    }
}
