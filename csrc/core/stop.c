/* Polls at intervals whether a call should go on, for all of its threads. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "core/stop.h"

#include <time.h>

/* Polls need it to some milliseconds only. A coarse clock does not read the CPU's counter: that
 * would wait for all loads before it, and loads after it would wait for memory in vain. */
#ifdef CLOCK_MONOTONIC_COARSE
#define POLL_CLOCK CLOCK_MONOTONIC_COARSE
#else
#define POLL_CLOCK CLOCK_MONOTONIC
#endif

static int64_t
time_of(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t
attn_monotonic_time(void)
{
    return time_of(CLOCK_MONOTONIC);
}

bool
attn_should_stop(attn_control *control, bool is_caller)
{
    if (atomic_load_explicit(&control->stop, memory_order_relaxed)) {
        return true;
    }
    if (!is_caller || control->poll == NULL) {
        return false;
    }
    int64_t time = time_of(POLL_CLOCK);
    if (control->next_poll == 0) {
        control->next_poll = time + ATTN_POLL_INTERVAL;
    }
    if (time < control->next_poll) {
        return false;
    }
    if (control->poll(control->poll_context)) {
        attn_stop(control);
    }
    control->next_poll = time_of(POLL_CLOCK) + ATTN_POLL_INTERVAL;
    return atomic_load_explicit(&control->stop, memory_order_relaxed);
}

void
attn_stop(attn_control *control)
{
    atomic_store_explicit(&control->stop, true, memory_order_relaxed);
}
