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
    sigset_t all, former;
    pthread_t thread;

    if (pthread_attr_init(&attributes) != 0) {
        return -1;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &former);
    int status = pthread_create(&thread, &attributes, start, argument);
    pthread_sigmask(SIG_SETMASK, &former, NULL);
    pthread_attr_destroy(&attributes);
    return status;
}

attn_hooks attn_hook = {malloc, free, create_thread};
