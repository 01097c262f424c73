/* The system's own memory and threads. */
#define _POSIX_C_SOURCE 200809L /* pthread_sigmask */
#include "core/hooks.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

/* Starts a detached thread that takes no signals: they are the interpreter's. */
static int
create_thread(void *(*start)(void *), void *argument)
{
    pthread_attr_t attributes;
    pthread_t thread;

    if (pthread_attr_init(&attributes) != 0) {
        return -1;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
#ifndef _WIN32 /* whose threads get no signals */
    sigset_t all, former;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &former);
#endif
    int status = pthread_create(&thread, &attributes, start, argument);
#ifndef _WIN32
    pthread_sigmask(SIG_SETMASK, &former, NULL);
#endif
    pthread_attr_destroy(&attributes);
    return status;
}

int
attn_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void))
{
#ifdef _WIN32
    (void)before, (void)in_parent, (void)in_child;
    return 0;
#else
    return pthread_atfork(before, in_parent, in_child);
#endif
}

attn_hooks attn_hook = {malloc, free, create_thread};
