/* Scratch memory laid out piece by piece. With memory NULL it is only counted. */
#ifndef ATTN_KERNEL_ARENA_H
#define ATTN_KERNEL_ARENA_H

#include "core/workspace.h"
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *memory;
    size_t used;
} arena;

/* The next bytes, aligned; where they are only counted, nobody uses the address. */
static void *
arena_take(arena *a, size_t bytes)
{
    uintptr_t at = (uintptr_t)a->memory + a->used;

    a->used += (bytes + ATTN_ALIGNMENT - 1) / ATTN_ALIGNMENT * ATTN_ALIGNMENT;
    return (void *)at;
}

static real *
arena_reals(arena *a, ptrdiff_t n)
{
    return arena_take(a, (size_t)n * sizeof(real));
}

#endif
