/* What a kernel's block sizes and its vocabulary must satisfy; wrong ones do not compile. What
 * each of the vocabulary's functions does is written in vec/scalar_f32.h, how they
 * come together in CONTRIBUTING.md. */
#ifndef ATTN_KERNEL_CONTRACT_H
#define ATTN_KERNEL_CONTRACT_H

#ifndef KERNEL
#error "KERNEL: the name of the kernel's table"
#endif

/* Before sizes.h, which divides by them: the reason comes before the division's error. */
_Static_assert(TILE_VECTORS >= 1, "a tile has vectors");
_Static_assert(LANES >= 1 && (LANES & (LANES - 1)) == 0, "LANES is a power of two");
#ifdef TERMS
_Static_assert(TERMS == 1 || TERMS == 2, "an operand is a real or a pair");
#endif

#include "kernel/sizes.h"

_Static_assert(REAL_BITS == 32 || REAL_BITS == 64, "real is float or double");
_Static_assert(sizeof(real) * 8 == REAL_BITS, "REAL_BITS are those of the vocabulary");
_Static_assert(sizeof(v_real) == LANES * sizeof(real), "a vector is LANES reals");

/* Lanes are bits of a word, columns of the blocks of row form, and chains of a norm. */
_Static_assert(LANES <= 16, "the 16 chains of a norm are whole vectors");
_Static_assert(64 % LANES == 0, "a vector's lanes are bits of one word");
_Static_assert(SLAB_COLUMNS % LANES == 0, "what is staged is whole vectors");

/* multiply_rest does up to 15 rows. */
_Static_assert(PANEL_ROWS >= 1 && PANEL_ROWS <= 12, "1 to 12 rows of a panel");
_Static_assert(ATTN_PANEL_COLUMNS % PANEL_ROWS == 0, "linear tasks are whole panels");
_Static_assert(ATTN_PANEL_COLUMNS % LANES == 0, "and they are whole vectors");

_Static_assert(PANEL_STEPS == 1 || PANEL_STEPS % 2 == 0,
               "every second step prefetches");

/* Row form keeps numbers of ATTN_FEW_ROWS rows in arrays of WIDTH. */
_Static_assert(WIDTH >= ATTN_FEW_ROWS, "a tile holds all rows of row form");
_Static_assert(ATTN_TASK_ROWS % WIDTH == 0,
               "a task is whole tiles, as bits are of words");
_Static_assert(ATTN_TASK_ROWS <= 64, "a task's rows are bits of one word");

_Static_assert(TERMS == 1 || REAL_BITS == 32, "pairs are summed in float");
_Static_assert(!TAKES_TWO_PANELS || (TERMS == 1 && REAL_BITS == 32),
               "two panels are of floats, or become floats");
_Static_assert(ATTN_DIM_BLOCK % TERMS == 0, "chains of a score are whole operands");
_Static_assert(ATTN_DIM_BLOCK % (LANES * TERMS) == 0, "and whole vectors of them");

_Static_assert(ATTN_BLOCK % 64 == 0, "a block is whole words of bits");
_Static_assert(ATTN_BLOCK == 128, "a block is 32 counters of dropout, 4 keys each");
_Static_assert(ATTN_CHUNK % ATTN_BLOCK == 0, "a chunk is whole blocks");

#endif
