/* Settings that make some CPUs of an instruction set faster, and change no bit. */
#ifndef ATTN_CORE_TUNING_H
#define ATTN_CORE_TUNING_H

#include <stdbool.h>

typedef enum {
    ATTN_TUNE_MANY_ROWS, /* linear products of many rows keep columns in the lanes */
    ATTN_TUNE_READ_ONCE, /* data that is read once bypasses the larger caches */
    ATTN_TUNE_READ_HALVES_ONCE, /* so do keys and values of float16 */
    ATTN_TUNE_READ_SOON, /* keys and values are prefetched shortly before they are read */
    ATTN_TUNE_READ_FAR_SOON, /* so are those that come from memory */
    ATTN_TUNE_READ_BURSTS, /* keys from memory are read in order before they are used */
    ATTN_TUNE_READ_ALONE,  /* weights that few rows read in order are not prefetched */
    ATTN_TUNE_NARROW_TILES, /* half a tile skips keys that only the other half sees */
    ATTN_TUNE_PAIR_TILES, /* two tiles are multiplied at once, and a head's keys and values are
                           * converted once for all tasks of a thread */
    ATTN_N_TUNINGS
} attn_tuning;

/* Is this setting faster on the CPU? */
bool attn_get_tuning(attn_tuning);

#ifdef ATTN_TESTING /* tests and experiments alone */
/* Sets the answer of attn_get_tuning; returns the one before. */
bool attn_set_tuning(attn_tuning, bool);
#endif

#endif
