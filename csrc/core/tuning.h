/* Settings that make some of the CPUs of an instruction set faster, and change no bit. */
#ifndef ATTN_CORE_TUNING_H
#define ATTN_CORE_TUNING_H

#include <stdbool.h>

typedef enum {
    ATTN_TUNE_MANY_ROWS, /* linear products of many rows take the form that is for these */
    ATTN_TUNE_READ_ONCE, /* what is read once is prefetched past the larger caches */
    ATTN_TUNE_READ_HALVES_ONCE, /* so are keys and values of float16 */
    ATTN_TUNE_READ_BURSTS, /* those from memory are read in order before they are used */
    ATTN_TUNE_NARROW_TILES, /* half a tile leaves out what only the other half sees */
    ATTN_N_TUNINGS
} attn_tuning;

/* Does it suit the CPU? */
bool attn_get_tuning(attn_tuning);

#ifdef ATTN_TESTING /* tests and experiments alone */
/* Answers so from now on; returns the former answer. */
bool attn_set_tuning(attn_tuning, bool);
#endif

#endif
