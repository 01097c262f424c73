/* Stopping a call early, as Ctrl-C does. */
#ifndef ATTN_CORE_STOP_H
#define ATTN_CORE_STOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Called by the calling thread at intervals; true means stop. */
typedef bool (*attn_poll)(void *context);

/* The state of a call that its threads share. */
typedef struct {
    attn_poll poll; /* may be NULL */
    void *poll_context;
    int64_t next_poll; /* nanoseconds, by the monotonic clock */
    atomic_bool stop;
    bool lost; /* this is a child of fork, without threads that were at work */
} attn_control;

/* True if the call should stop. Calls poll at intervals where is_caller. */
bool attn_should_stop(attn_control *, bool is_caller);
/* Makes the call stop. */
void attn_stop(attn_control *);

/* Nanoseconds, by a clock that is never set. */
int64_t attn_monotonic_time(void);

/* The interval of polls, in nanoseconds. */
#define ATTN_POLL_INTERVAL 50000000 /* Ctrl-C in 200 ms */

#endif
