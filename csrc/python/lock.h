/* The interpreter's lock during a call. */
#ifndef ATTN_PYTHON_LOCK_H
#define ATTN_PYTHON_LOCK_H

#include "python/binding.h"

#include "core/tasks.h"

typedef struct {
    PyThreadState *thread;
    bool failed; /* a signal handler raised */
} py_lock;

/* Notes which thread is the interpreter's main one. Called on import. */
int py_find_main_thread(void);

/* Releases the interpreter's lock if this many multiplications are worth it, and lets
 * the core poll for signals meanwhile. */
void py_give_up_lock(py_lock *, double work, attn_call *);
/* Takes it back; an error if the core ran out of memory, if a signal handler raised, or
 * if one forked and this is the child, which lacks the working threads. */
int py_take_lock_back(py_lock *, int status, const attn_call *);

#endif
