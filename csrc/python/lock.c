/* The interpreter's lock during a call. */
#include "python/lock.h"

#include "core/hooks.h"

/* Work, in multiplications, below which the lock is kept: a few microseconds, less than
 * taking a contended lock may cost. */
#define WORK_UNDER_LOCK 1e5

/* The thread that runs signal handlers. No other thread polls: at exit Python stops
 * threads wherever they ask for its lock, and a call with other threads at work must
 * not be abandoned there. */
static unsigned long main_thread;

/* The thread that forks becomes the main one of the child. */
static void
after_fork_in_child(void)
{
    main_thread = PyThread_get_thread_ident();
}

int
py_find_main_thread(void)
{
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *thread =
        threading == NULL ? NULL : PyObject_CallMethod(threading, "main_thread", NULL);
    PyObject *ident = thread == NULL ? NULL : PyObject_GetAttrString(thread, "ident");

    Py_XDECREF(threading);
    Py_XDECREF(thread);
    main_thread = ident == NULL ? 0 : PyLong_AsUnsignedLong(ident);
    Py_XDECREF(ident);
    if (PyErr_Occurred()) {
        return -1;
    }
    if (attn_at_fork(NULL, NULL, after_fork_in_child) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

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
    bool polls = work >= WORK_UNDER_LOCK && PyThread_get_thread_ident() == main_thread;

    lock->failed = false;
    lock->thread = work < WORK_UNDER_LOCK ? NULL : PyEval_SaveThread();
    call->control.poll = polls ? check_signals : NULL;
    call->control.poll_context = lock;
}

int
py_take_lock_back(py_lock *lock, int status, const attn_call *call)
{
    if (lock->thread != NULL) {
        PyEval_RestoreThread(lock->thread);
    }
    if (lock->failed) {
        return -1;
    }
    if (call->control.lost) {
        PyErr_SetString(PyExc_RuntimeError,
                        "expected no fork in a signal handler during a call with "
                        "several threads: the child has none of them, nor the result");
        return -1;
    }
    if (status < 0) {
        PyErr_NoMemory();
    }
    return status < 0 ? -1 : 0;
}
