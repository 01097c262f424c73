/* The interpreter's lock during a call. */
#include "python/lock.h"

/* Work, in multiplications, below which the lock is kept: a few microseconds, less than a
 * contended lock may cost. */
#define WORK_UNDER_LOCK 1e5

/* Runs pending signal handlers, so that Ctrl-C works. */
static bool
check_signals(void *context)
{
    py_lock *lock = context;

    PyEval_RestoreThread(lock->thread);
    lock->failed = PyErr_CheckSignals() < 0;
    lock->thread = PyEval_SaveThread();
    return lock->failed;
}

void
py_give_up_lock(py_lock *lock, double work, attn_call *call)
{
    lock->failed = false;
    lock->thread = work < WORK_UNDER_LOCK ? NULL : PyEval_SaveThread();
    call->control.poll = lock->thread == NULL ? NULL : check_signals;
    call->control.poll_context = lock;
}

int
py_take_lock_back(py_lock *lock, int status)
{
    if (lock->thread != NULL) {
        PyEval_RestoreThread(lock->thread);
    }
    if (status < 0 && !lock->failed) {
        PyErr_NoMemory();
    }
    return status < 0 || lock->failed ? -1 : 0;
}
