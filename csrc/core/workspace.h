/* Scratch memory of threads, kept between calls. */
#ifndef ATTN_CORE_WORKSPACE_H
#define ATTN_CORE_WORKSPACE_H

#include <stddef.h>

#define ATTN_ALIGNMENT 64   /* of workspaces: a cache line */
#define ATTN_CLEAR_BYTES 64 /* of those that have to begin with zeros */

/* A block of memory kept from an earlier call if one is large enough; NULL if none can be
 * had. */
void *attn_workspace_acquire(size_t size);
/* Acquires up to n; returns how many it got. */
int attn_acquire_workspaces(void **workspaces, int n, size_t size);
void attn_workspace_release(void *); /* or NULL */
void attn_release_workspaces(void **workspaces, int n);
void attn_workspace_free_all(void);

#endif
