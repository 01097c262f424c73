/* The system's own memory and threads. */
#define _DEFAULT_SOURCE /* madvise, posix_memalign, pthread_sigmask */
#include "core/hooks.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#if defined(_WIN32)
#include <malloc.h>
#elif defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(_WIN32)
void *
attn_allocate_aligned(size_t alignment, size_t size)
{
    return _aligned_malloc(size, alignment);
}

void
attn_free_aligned(void *block)
{
    _aligned_free(block);
}
#else
/* As NumPy does for arrays of its own. */
static void
use_huge_pages(void *block, size_t size)
{
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const size_t page = 2 << 20;

    if (size >= 2 * page) {
        uintptr_t from = ((uintptr_t)block + page - 1) / page * page;
        uintptr_t to = ((uintptr_t)block + size) / page * page;
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
    }
#else
    (void)block, (void)size;
#endif
}

void *
attn_allocate_aligned(size_t alignment, size_t size)
{
    void *block;

    if (posix_memalign(&block, alignment, size) != 0) {
        return NULL;
    }
    use_huge_pages(block, size);
    return block;
}

void
attn_free_aligned(void *block)
{
    free(block);
}
#endif

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
