/* Habits: the CPU's, or those that were set. */
#include "core/habits.h"

#include "core/cpu.h"

#include <stdatomic.h>

enum { UNKNOWN, NO, YES };
static atomic_int habits[ATTN_N_HABITS]; /* UNKNOWN at first */

/* The CPU is asked once: that takes longer than a small product. */
bool
attn_has_habit(attn_habit habit)
{
    int now = atomic_load(&habits[habit]);

    if (now == UNKNOWN) {
        bool repays = habit == ATTN_WIDE_TASKS ? attn_cpu_repays_wide_tasks()
                                               : attn_cpu_repays_reading_once();
        now = repays ? YES : NO;
        atomic_store(&habits[habit], now);
    }
    return now == YES;
}

bool
attn_set_habit(attn_habit habit, bool has)
{
    bool former = attn_has_habit(habit);

    atomic_store(&habits[habit], has ? YES : NO);
    return former;
}
