/* Which keys a row may see: the ranges that causality, window and lengths leave, and
 * the bits of a block after the boolean mask. Knows no dtype but the mask's. */
#include "core/visibility.h"

#include "vec/bytes.h"

#include <assert.h>
#include <string.h>

typedef __int128 wide; /* holds any sum of a few int64_t */

static ptrdiff_t
clamp(wide x, ptrdiff_t low, ptrdiff_t high)
{
    return x < low ? low : x > high ? high : (ptrdiff_t)x;
}

static ptrdiff_t
clamp_size(ptrdiff_t x, ptrdiff_t low, ptrdiff_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* How many keys behind its position a row may see; < 0: all. */
static int64_t
keys_behind(const attn_problem *p)
{
    return p->causal ? 0 : p->window_right;
}

void
attn_see_ranges(const attn_problem *p, int64_t q_offset, int64_t kv_length,
                attn_task *task)
{
    /* As wide as no sum with a query's index overflows. */
    const ptrdiff_t far = PTRDIFF_MAX / 2;
    int64_t behind = keys_behind(p), before = p->window_left;
    ptrdiff_t query = task->n_rows > 0 ? task->first_row % task->n_queries : 0;
    ptrdiff_t end = clamp(kv_length, 0, p->n_keys);
    ptrdiff_t from = before < 0 ? -far : clamp((wide)q_offset - before, -far, far);
    ptrdiff_t to = behind < 0 ? far : clamp((wide)q_offset + behind + 1, -far, far);

    for (ptrdiff_t r = 0; r < task->n_rows; r++) {
        ptrdiff_t first = clamp_size(from + query, 0, p->n_keys);
        ptrdiff_t last = clamp_size(to + query, 0, end);
        task->see_from[r] = first < last ? first : 0;
        task->see_to[r] = first < last ? last : 0;
        query = query + 1 < task->n_queries ? query + 1 : 0; /* a division takes long */
    }
}

void
attn_seeing_queries(const attn_problem *p, const attn_task *task, ptrdiff_t first_key,
                    ptrdiff_t end_key, ptrdiff_t *from, ptrdiff_t *to)
{
    int64_t behind = keys_behind(p);
    wide end = end_key < task->kv_length ? end_key : task->kv_length;

    *from = 0;
    *to = first_key < end ? task->n_queries : 0;
    if (behind >= 0) {
        *from = clamp((wide)first_key - behind - task->q_offset, 0, *to);
    }
    if (p->window_left >= 0) {
        *to = clamp(end + p->window_left - task->q_offset, 0, *to);
    }
    if (*from >= *to) {
        *from = *to = 0;
    }
}

void
attn_seen_keys(const attn_task *task, ptrdiff_t *from, ptrdiff_t *to)
{
    *from = PTRDIFF_MAX;
    *to = 0;
    for (ptrdiff_t r = 0; r < task->n_rows; r++) {
        if (task->see_from[r] < task->see_to[r]) {
            *from = task->see_from[r] < *from ? task->see_from[r] : *from;
            *to = task->see_to[r] > *to ? task->see_to[r] : *to;
        }
    }
}

/* Bits from .. to - 1 of a word, from and to in any order relative to 0 .. 64. */
static uint64_t
range_bits(ptrdiff_t from, ptrdiff_t to)
{
    from = from < 0 ? 0 : from;
    to = to > 64 ? 64 : to;
    if (from >= to) {
        return 0;
    }
    return (~UINT64_C(0) >> (64 - (to - from))) << from;
}

/* Bit k of the result is mask element k of n <= 64. */
static uint64_t
pack_bits(const char *mask, ptrdiff_t stride, ptrdiff_t n)
{
    uint64_t bits = 0;
    ptrdiff_t k = 0;

    if (stride == 0) {
        return *mask ? range_bits(0, n) : 0;
    }
    if (stride == 1 && n == 64) {
        return test_64_bytes(mask);
    }
    if (stride == 1) {
        for (; k + 8 <= n; k += 8) {
            bits |= test_eight_bytes(mask + k) << k;
        }
    }
    for (; k < n; k++) {
        bits |= (uint64_t)(mask[k * stride] != 0) << k;
    }
    return bits;
}

static void
pack_mask_row(const attn_problem *p, const char *mask, ptrdiff_t n_keys,
              uint64_t words[ATTN_BLOCK_WORDS])
{
    ptrdiff_t stride = p->mask.column_stride;

    for (ptrdiff_t w = 0; w < ATTN_BLOCK_WORDS; w++) {
        ptrdiff_t n = n_keys - w * 64 < 64 ? n_keys - w * 64 : 64;
        words[w] = n > 0 ? pack_bits(mask + w * 64 * stride, stride, n) : 0;
    }
}

/* Takes the boolean mask of a block into `keys`. Rows that share a mask row, as in a
 * padding mask, share its packing. */
static void
apply_mask(const attn_problem *p, const attn_task *task, ptrdiff_t first_key,
           ptrdiff_t n_keys, attn_key_bits keys)
{
    const char *packed_row = NULL;
    uint64_t packed[ATTN_BLOCK_WORDS] = {0};
    const char *mask = task->mask + first_key * p->mask.column_stride;
    ptrdiff_t g = task->first_row / task->n_queries;
    ptrdiff_t i = task->first_row % task->n_queries;

    for (ptrdiff_t r = 0; r < task->n_rows; r++) {
        const char *row = mask + g * p->mask.head_stride + i * p->mask.row_stride;
        if (++i == task->n_queries) {
            i = 0;
            g++;
        }
        if (row != packed_row) {
            pack_mask_row(p, row, n_keys, packed);
            packed_row = row;
            for (ptrdiff_t k = ATTN_BLOCK; k < 2 * ATTN_BLOCK; k += 64) {
                __builtin_prefetch(row + k * p->mask.column_stride);
            }
        }
        for (ptrdiff_t w = 0; w < ATTN_BLOCK_WORDS; w++) {
            keys[r][w] &= packed[w];
        }
    }
}

attn_coverage
attn_see_block(const attn_problem *p, const attn_task *task, ptrdiff_t first_key,
               ptrdiff_t n_keys, attn_key_bits keys)
{
    bool all = task->mask == NULL;
    uint64_t any = 0, lacking = 0, whole[ATTN_BLOCK_WORDS];

    assert(n_keys <= ATTN_BLOCK);
    for (ptrdiff_t r = 0; r < task->n_rows && all; r++) {
        all = task->see_from[r] <= first_key && task->see_to[r] >= first_key + n_keys;
    }
    if (all) {
        return ATTN_SEE_ALL;
    }
    for (ptrdiff_t w = 0; w < ATTN_BLOCK_WORDS; w++) {
        whole[w] = range_bits(0, n_keys - w * 64);
    }
    for (ptrdiff_t r = 0; r < task->n_rows; r++) {
        ptrdiff_t from = task->see_from[r] - first_key;
        ptrdiff_t to = task->see_to[r] - first_key;
        memcpy(keys[r], whole, sizeof whole);
        for (ptrdiff_t w = 0; w < ATTN_BLOCK_WORDS && (from > 0 || to < n_keys); w++) {
            keys[r][w] &= range_bits(from - w * 64, to - w * 64);
        }
    }
    memset(keys[task->n_rows], 0,
           (size_t)(ATTN_TASK_ROWS - task->n_rows) * sizeof keys[0]);
    if (task->mask != NULL) {
        apply_mask(p, task, first_key, n_keys, keys);
    }
    for (ptrdiff_t r = 0; r < task->n_rows; r++) {
        for (ptrdiff_t w = 0; w < ATTN_BLOCK_WORDS; w++) {
            any |= keys[r][w];
            lacking |= keys[r][w] ^ whole[w];
        }
    }
    return lacking == 0 ? ATTN_SEE_ALL : any != 0 ? ATTN_SEE_SOME : ATTN_SEE_NONE;
}

/* Two words of an array. */
typedef uint64_t two_words __attribute__((vector_size(16), aligned(8), may_alias));

/* Transposes 64 x 64 bits in place: bit c of x[r] changes places with bit r of x[c].
 * Source: H. S. Warren, Hacker's Delight, 2nd ed. 2012, section 7-3. */
static void
transpose_64(uint64_t x[64])
{
    uint64_t low = UINT64_C(0x00000000ffffffff);

    for (int step = 32; step > 1; step >>= 1, low ^= low << step) {
        for (int r = 0; r < 64; r = (r + step + 2) & ~step) {
            two_words *a = (two_words *)(x + r), *b = (two_words *)(x + r + step);
            two_words swap = ((*a >> step) ^ *b) & low;
            *a ^= swap << step;
            *b ^= swap;
        }
    }
    for (int r = 0; r < 64; r += 2) { /* step is 1 */
        uint64_t swap = ((x[r] >> 1) ^ x[r + 1]) & low;
        x[r] ^= swap << 1;
        x[r + 1] ^= swap;
    }
}

void
attn_transpose_bits(const attn_key_bits keys, ptrdiff_t n_keys,
                    uint64_t rows[ATTN_BLOCK])
{
    for (ptrdiff_t w = 0; w * 64 < n_keys; w++) {
        uint64_t all = ~UINT64_C(0);
        for (ptrdiff_t r = 0; r < ATTN_TASK_ROWS; r++) {
            rows[w * 64 + r] = keys[r][w];
            all &= keys[r][w];
        }
        if (all != ~UINT64_C(0)) {
            transpose_64(rows + w * 64);
        }
    }
}
