/* The tuning that suits the CPU, or what a test has set instead. */
#include "core/tuning.h"

#include "core/cpu.h"

#include <stdatomic.h>

enum { UNKNOWN, NO, YES };
static atomic_int tunings[ATTN_N_TUNINGS]; /* UNKNOWN at first */

static bool (*const repays[])(void) = {
    [ATTN_TUNE_MANY_ROWS] = attn_cpu_repays_many_rows,
    [ATTN_TUNE_READ_ONCE] = attn_cpu_repays_reading_once,
    [ATTN_TUNE_READ_HALVES_ONCE] = attn_cpu_repays_reading_halves_once,
    [ATTN_TUNE_READ_SOON] = attn_cpu_repays_reading_soon,
    [ATTN_TUNE_READ_FAR_SOON] = attn_cpu_repays_reading_far_soon,
    [ATTN_TUNE_READ_BURSTS] = attn_cpu_repays_reading_bursts,
    [ATTN_TUNE_READ_ALONE] = attn_cpu_repays_reading_alone,
    [ATTN_TUNE_NARROW_TILES] = attn_cpu_repays_narrow_tiles,
    [ATTN_TUNE_PAIR_TILES] = attn_cpu_repays_pairing_tiles,
};

/* The CPU is identified once: that takes longer than a small product. */
bool
attn_get_tuning(attn_tuning tuning)
{
    int now = atomic_load(&tunings[tuning]);

    if (now == UNKNOWN) {
        now = repays[tuning]() ? YES : NO;
        atomic_store(&tunings[tuning], now);
    }
    return now == YES;
}

#ifdef ATTN_TESTING
bool
attn_set_tuning(attn_tuning tuning, bool on)
{
    bool former = attn_get_tuning(tuning);

    atomic_store(&tunings[tuning], on ? YES : NO);
    return former;
}
#endif
