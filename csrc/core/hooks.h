/* What attnpy asks of the system: memory and threads. The binding hooks in an allocation of
 * its own; tests make each of these fail in turn. */
#ifndef ATTN_CORE_HOOKS_H
#define ATTN_CORE_HOOKS_H

#include <stddef.h>

typedef struct {
    void *(*allocate)(size_t size);
    void (*free)(void *);
    /* Starts a detached thread; 0 if it did. */
    int (*create_thread)(void *(*start)(void *), void *argument);
} attn_hooks;

extern attn_hooks attn_hook;

/* Memory at a multiple of alignment, NULL if there is none. Where it is large it lies in huge
 * pages, if the system has them. Only attn_free_aligned frees it. */
void *attn_allocate_aligned(size_t alignment, size_t size);
void attn_free_aligned(void *);

/* Has these functions called around each fork; any may be NULL. 0 on success. Windows has no
 * fork. */
int attn_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

#endif
