/* Dropout: which weights of a block are kept. Source of the generator: Salmon, Moraes, Dror
 * and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, 2011, Philox 4x32-10. */
#ifndef ATTN_KERNEL_ATTENTION_DROPOUT_H
#define ATTN_KERNEL_ATTENTION_DROPOUT_H

#include "kernel/attention/rows.h"

/* Key j of a block is word j / 32 of the generator's counter j % 32. */
enum { COUNTERS = ATTN_BLOCK / 4 };

/* Ten rounds on so many counters at once. */
static void
generate(uint32_t x[4][COUNTERS], uint64_t seed)
{
    uint32_t low = (uint32_t)seed, high = (uint32_t)(seed >> 32);

    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < COUNTERS; i++) {
            uint64_t a = UINT64_C(0xd2511f53) * x[0][i];
            uint64_t b = UINT64_C(0xcd9e8d57) * x[2][i];
            x[0][i] = (uint32_t)(b >> 32) ^ x[1][i] ^ low;
            x[1][i] = (uint32_t)b;
            x[2][i] = (uint32_t)(a >> 32) ^ x[3][i] ^ high;
            x[3][i] = (uint32_t)a;
        }
        low += UINT32_C(0x9e3779b9);
        high += UINT32_C(0xbb67ae85);
    }
}

/* Sets the bits, 0 before, of row r's keys of the block at `first`. */
static void
find_kept_keys(task_rows *t, ptrdiff_t r, ptrdiff_t first)
{
    const attn_task *task = t->task;
    ptrdiff_t row = task->first_row + r;
    uint32_t words[4][COUNTERS];
    uint32_t least_kept = (uint32_t)(t->p->dropout * 0x1p32);

    for (int i = 0; i < COUNTERS; i++) {
        words[0][i] = (uint32_t)(first / ATTN_BLOCK * COUNTERS + i);
        words[1][i] =
            (uint32_t)((uint64_t)task->q_offset + (uint64_t)(row % task->n_queries));
        words[2][i] = (uint32_t)(task->first_head + row / task->n_queries);
        words[3][i] = (uint32_t)task->batch;
    }
    generate(words, t->p->dropout_seed);
    for (int c = 0; c < 4; c++) {
        uint32_t bits = 0;
        for (int i = 0; i < COUNTERS; i++) {
            bits |= (uint32_t)(words[c][i] >= least_kept) << i;
        }
        t->keep[r][c / 2] |= (uint64_t)bits << (c % 2 * COUNTERS);
    }
}

/* Which weights the task's rows keep of the block at `first`, by rows or by keys. */
static NOINLINE void
find_kept(task_rows *t, ptrdiff_t first)
{
    memset(t->keep, 0, sizeof t->keep);
    for (ptrdiff_t r = 0; r < t->task->n_rows; r++) {
        find_kept_keys(t, r, first);
    }
    if (!t->row_form) {
        attn_transpose_bits(t->keep, ATTN_BLOCK, t->keep_lanes);
    }
}

/* Kept weights are multiplied by this factor. */
static real
kept_scale(const task_rows *t)
{
    return (real)(1 / (1 - t->p->dropout));
}

/* Multiplies kept weights by a factor and sets the others to 0, in n_lines lines of
 * n_vec vectors. A line is a key or a row, and bits[i * bits_line] has its bits from
 * first_bit on. */
static ONE_COPY void
drop(real *at, ptrdiff_t line, ptrdiff_t n_lines, ptrdiff_t n_vec, const uint64_t *bits,
     ptrdiff_t bits_line, ptrdiff_t first_bit, real factor)
{
    for (ptrdiff_t i = 0; i < n_lines; i++) {
        for (ptrdiff_t v = 0; v < n_vec; v++) {
            ptrdiff_t bit = first_bit + v * LANES;
            uint64_t word = bits[i * bits_line + bit / 64];
            real *to = at + i * line + v * LANES;
            v_real x = v_mul(v_load(to), v_set1(factor));
            v_store(to, v_select(v_mask_of(word >> (bit % 64)), x, v_set1(0)));
        }
    }
}

#endif
