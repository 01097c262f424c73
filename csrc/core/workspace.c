/* Scratch memory, kept for later calls. A child of fork keeps what its parent had. */
#include "core/workspace.h"

#include "core/hooks.h"
#include "core/limits.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define MAX_KEPT ATTN_MAX_THREADS
#define MAX_KEPT_SIZE (3 << 19) /* bytes: the most that a kernel takes by choice */

typedef struct {
    _Alignas(ATTN_ALIGNMENT) void *block; /* as allocated */
    size_t size;                          /* of the workspace behind this header */
} header;

static struct {
    pthread_mutex_t lock;
    void *workspaces[MAX_KEPT]; /* each behind a header with its size */
    int n;
    bool prepared_for_fork;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void
lock_kept(void)
{
    pthread_mutex_lock(&kept.lock);
}

static void
unlock_kept(void)
{
    pthread_mutex_unlock(&kept.lock);
}

/* Makes sure that no thread holds the lock during a fork. Call it under the lock; if
 * memory is short, the next call tries again. */
static void
prepare_for_fork(void)
{
    if (!kept.prepared_for_fork) {
        kept.prepared_for_fork = attn_at_fork(lock_kept, unlock_kept, unlock_kept) == 0;
    }
}

static header *
header_of(void *workspace)
{
    return (header *)workspace - 1;
}

static void *
allocate_workspace(size_t size)
{
    char *block = attn_hook.allocate(size + sizeof(header) + ATTN_ALIGNMENT - 1);
    if (block == NULL) {
        return NULL;
    }
    size_t misaligned = (uintptr_t)block % ATTN_ALIGNMENT;
    header *h =
        (header *)(void *)(block + (ATTN_ALIGNMENT - misaligned) % ATTN_ALIGNMENT);
    h->block = block;
    h->size = size;
    return h + 1;
}

void *
attn_workspace_acquire(size_t size)
{
    void *workspace;

    return attn_acquire_workspaces(&workspace, 1, size) == 1 ? workspace : NULL;
}

int
attn_acquire_workspaces(void **workspaces, int n, size_t size)
{
    int n_had = 0;

    lock_kept();
    prepare_for_fork();
    for (int n_left = n; n_left > 0 && kept.n > 0; n_left--) {
        void *workspace = kept.workspaces[--kept.n];
        if (header_of(workspace)->size >= size) {
            workspaces[n_had++] = workspace;
        } else {
            attn_hook.free(header_of(workspace)->block);
        }
    }
    unlock_kept();
    while (n_had < n && (workspaces[n_had] = allocate_workspace(size)) != NULL) {
        n_had++;
    }
    return n_had;
}

void
attn_workspace_release(void *workspace)
{
    if (workspace != NULL) {
        attn_release_workspaces(&workspace, 1);
    }
}

void
attn_release_workspaces(void **workspaces, int n)
{
    lock_kept();
    while (n > 0) { /* the first one is taken first again */
        header *h = header_of(workspaces[--n]);
        if (h->size <= MAX_KEPT_SIZE && kept.n < MAX_KEPT) {
            kept.workspaces[kept.n++] = h + 1;
        } else {
            attn_hook.free(h->block);
        }
    }
    unlock_kept();
}

void
attn_workspace_free_all(void)
{
    lock_kept();
    while (kept.n > 0) {
        attn_hook.free(header_of(kept.workspaces[--kept.n])->block);
    }
    unlock_kept();
}
