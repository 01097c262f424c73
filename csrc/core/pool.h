/* A pool of threads, which start when first needed and sleep when idle. */
#ifndef ATTN_CORE_POOL_H
#define ATTN_CORE_POOL_H

#include "core/stop.h"

#include <stddef.h>
#include <stdint.h>

typedef void (*attn_body)(void *context, ptrdiff_t index, int worker);

/* Calls body(context, i, worker) once for each i < n, on up to n_threads threads with
 * distinct workers in [0, n_threads); worker 0 is the caller. `in_runs`: a thread takes
 * indices that follow each other, as long as there are some of its share. */
void attn_parallel_for(ptrdiff_t n, int n_threads, bool in_runs, attn_body,
                       void *context, attn_control *);

/* Nanoseconds for which an idle thread spins waiting for work before it sleeps. */
void attn_set_spin_time(int64_t);
int64_t attn_get_spin_time(void);

#endif
