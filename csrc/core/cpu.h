/* Instruction sets and the floating-point control word of this CPU. */
#ifndef ATTN_CORE_CPU_H
#define ATTN_CORE_CPU_H

#include <stdbool.h>
#include <stdint.h>

bool attn_cpu_has_baseline(void);
bool attn_cpu_has_avx2(void);
bool attn_cpu_has_avx_vnni(void);
bool attn_cpu_has_avx512(void);
bool attn_cpu_has_avx512_vnni(void);
bool attn_cpu_has_avx512_bf16(void);
bool attn_cpu_has_amx_bf16(void); /* asks Linux for it */
bool attn_cpu_has_neon_dotprod(void);
/* Are its dot products of bfloat16 numbers faster than widening them to float? */
bool attn_cpu_repays_avx512_bf16(void);
/* Is the form of linear products for many rows faster than tiles? */
bool attn_cpu_repays_many_rows(void);
/* Is it faster to prefetch data that is read once into the first-level cache only? */
bool attn_cpu_repays_reading_once(void);
/* And float16 keys and values? */
bool attn_cpu_repays_reading_halves_once(void);
/* Is it faster to prefetch keys and values shortly before they are read, into all caches, than to
 * touch them? */
bool attn_cpu_repays_reading_soon(void);
/* And those that come from memory? */
bool attn_cpu_repays_reading_far_soon(void);
/* Is it faster to read a group of keys or values in the order of memory before it is read in
 * another order? */
bool attn_cpu_repays_reading_bursts(void);
/* ... leaving the prefetches of weights, which few rows read in order, to the CPU? */
bool attn_cpu_repays_reading_alone(void);

/* Are two tiles multiplied at once faster than one after the other? */
bool attn_cpu_repays_pairing_tiles(void);

/* Do products of a single vector of rows, with a load for each multiply-add, run at the full
 * rate? */
bool attn_cpu_repays_narrow_tiles(void);

/* Sets the control word to the default: round to nearest, subnormals kept, exceptions
 * masked. Returns the word before. */
uint32_t attn_fp_control_reset(void);
void attn_fp_control_restore(uint32_t);

void attn_cpu_pause(void); /* for a loop that waits for another thread */

#endif
