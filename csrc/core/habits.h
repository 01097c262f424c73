/* What pays on some of the CPUs that have an instruction set, and changes no bit. */
#ifndef ATTN_CORE_HABITS_H
#define ATTN_CORE_HABITS_H

#include <stdbool.h>

typedef enum {
    ATTN_WIDE_TASKS, /* linear products of many rows, where a kernel has tasks for them */
    ATTN_READS_ONCE, /* what is read once is asked for past the larger caches */
    ATTN_N_HABITS
} attn_habit;

/* As the CPU likes it best, unless set otherwise, by tests and for calibration. */
bool attn_has_habit(attn_habit);
bool attn_set_habit(attn_habit, bool); /* returns the former value */

#endif
