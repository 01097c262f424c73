/* Memory of results. The system clears each page that it hands out, and takes large pieces
 * back as soon as they are freed: in a model, whose layers make the same arrays again and
 * again, that took up to an eighth of the time. So up to KEPT_BYTES of them are kept. */
#define _DEFAULT_SOURCE /* madvise */
#include "python/memory.h"

#include "core/workspace.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

enum {
    LARGE = 128 << 10, /* bytes of an array from which on this is done */
    HUGE_PAGE = 2 << 20,
    MAX_KEPT = 32
};
/* Under AddressSanitizer none are kept, so that it sees what is used after it is freed. */
#if defined(__SANITIZE_ADDRESS__)
#define KEPT_BYTES 0
#else
#define KEPT_BYTES ((size_t)128 << 20)
#endif

/* What lies before the elements; as long as a cache line. */
typedef union {
    size_t capacity; /* bytes after this */
    char line[ATTN_ALIGNMENT];
} header;

/* Blocks that nobody uses, the oldest first. Who finds them busy, which without the
 * interpreter's lock may happen, does without. */
static struct {
    atomic_flag busy;
    int n;
    size_t bytes;
    header *blocks[MAX_KEPT];
} kept = {.busy = ATOMIC_FLAG_INIT};

static PyObject *handler; /* a capsule for NumPy */

/* The block goes out of the list. */
static header *
remove_kept(int i)
{
    header *block = kept.blocks[i];

    kept.n--;
    kept.bytes -= block->capacity;
    memmove(kept.blocks + i, kept.blocks + i + 1,
            (size_t)(kept.n - i) * sizeof *kept.blocks);
    return block;
}

/* A block of just so many bytes, or NULL. */
static header *
take_kept(size_t capacity)
{
    header *block = NULL;

    if (atomic_flag_test_and_set(&kept.busy)) {
        return NULL;
    }
    for (int i = kept.n - 1; i >= 0 && block == NULL; i--) {
        block = kept.blocks[i]->capacity == capacity ? remove_kept(i) : NULL;
    }
    atomic_flag_clear(&kept.busy);
    return block;
}

/* Keeps a block, and frees the oldest ones for which there is then no room. */
static void
keep(header *block)
{
    if (block->capacity < LARGE || block->capacity > KEPT_BYTES ||
        atomic_flag_test_and_set(&kept.busy)) {
        free(block);
        return;
    }
    while (kept.n == MAX_KEPT || kept.bytes + block->capacity > KEPT_BYTES) {
        free(remove_kept(0));
    }
    kept.blocks[kept.n++] = block;
    kept.bytes += block->capacity;
    atomic_flag_clear(&kept.busy);
}

/* Rounds up to one of eight sizes for each power of two, so that what is kept fits again. */
static size_t
capacity_for(size_t size)
{
    size_t step = 1;

    while (size / step > 16) {
        step *= 2;
    }
    return (size + step - 1) / step * step;
}

static header *
new_block(size_t capacity)
{
    void *memory;

    if (capacity > SIZE_MAX - sizeof(header) ||
        posix_memalign(&memory, ATTN_ALIGNMENT, capacity + sizeof(header)) != 0) {
        return NULL;
    }
#if defined(MADV_HUGEPAGE)
    if (capacity >= 2 * HUGE_PAGE) { /* as NumPy does for arrays of its own */
        uintptr_t from = ((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        uintptr_t to = ((uintptr_t)memory + capacity) / HUGE_PAGE * HUGE_PAGE;
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
    }
#endif
    header *block = memory;
    block->capacity = capacity;
    return block;
}

static void *
allocate(void *context, size_t size)
{
    size_t capacity = capacity_for(size);
    header *block = take_kept(capacity);

    (void)context;
    block = block == NULL ? new_block(capacity) : block;
    return block == NULL ? NULL : block + 1;
}

static void *
allocate_zeros(void *context, size_t n, size_t size)
{
    size_t n_bytes;
    void *data;

    if (__builtin_mul_overflow(n, size, &n_bytes)) {
        return NULL;
    }
    data = allocate(context, n_bytes);
    return data == NULL ? NULL : memset(data, 0, n_bytes);
}

static void
release(void *context, void *data, size_t size)
{
    (void)context, (void)size;
    if (data != NULL) {
        keep((header *)data - 1);
    }
}

static void *
reallocate(void *context, void *data, size_t size)
{
    void *new_data = allocate(context, size);

    if (new_data != NULL && data != NULL) {
        size_t old_size = ((header *)data - 1)->capacity;
        memcpy(new_data, data, old_size < size ? old_size : size);
        release(context, data, old_size);
    }
    return new_data;
}

/* Gives NumPy its own functions back. An error that is pending stays as it is. */
static int
restore_handler(PyObject *before)
{
    PyObject *ours;
#if PY_VERSION_HEX >= 0x030c0000
    PyObject *error = PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
#endif

    ours = PyDataMem_SetHandler(before);
    Py_DECREF(before);
    if (ours == NULL) {
        return -1;
    }
    Py_DECREF(ours);
#if PY_VERSION_HEX >= 0x030c0000
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(type, value, traceback);
#endif
    return 0;
}

PyArrayObject *
py_new_array(int n_axes, const npy_intp *shape, int type)
{
    npy_intp n = PyArray_MultiplyList(shape, n_axes);
    PyObject *array, *before = NULL;

    if (n >= LARGE / (npy_intp)sizeof(double)) {
        before = PyDataMem_SetHandler(handler);
        if (before == NULL) {
            return NULL;
        }
    }
    array = PyArray_EMPTY(n_axes, (npy_intp *)shape, type, 0);
    if (before != NULL && restore_handler(before) < 0) {
        Py_CLEAR(array);
    }
    return (PyArrayObject *)array;
}

int
py_init_memory(void)
{
    static PyDataMem_Handler functions = {
        "attnpy",
        1,
        {NULL, allocate, allocate_zeros, reallocate, release},
    };

    if (handler == NULL) {
        handler = PyCapsule_New(&functions, "mem_handler", NULL);
    }
    return handler == NULL ? -1 : 0;
}
