/* Memory of results. The system clears each page before it provides it, and takes large
 * pieces back as soon as they are freed: in a model, whose layers make the same arrays
 * again and again, that took up to an eighth of the time. So up to KEPT_BYTES of
 * results are kept. */
#include "python/memory.h"

#include "core/hooks.h"
#include "core/workspace.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    OURS = 64 << 10,   /* bytes of an array from which on they are ours */
    LARGE = 128 << 10, /* bytes from which on they are kept */
    MAX_KEPT = 32,
    TRACE_DOMAIN = 389047 /* numpy.lib.tracemalloc_domain */
};
/* Under AddressSanitizer none are kept, so that it detects use after free. */
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

/* Unused blocks, the oldest first. A thread that finds the list busy, which can happen
 * without the interpreter's lock, does not use it. */
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

/* A block of exactly `capacity` bytes, or NULL. */
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

/* Keeps a block, and frees the oldest ones to stay within the limit. */
static void
keep(header *block)
{
    if (block->capacity < LARGE || block->capacity > KEPT_BYTES ||
        atomic_flag_test_and_set(&kept.busy)) {
        attn_free_aligned(block);
        return;
    }
    while (kept.n == MAX_KEPT || kept.bytes + block->capacity > KEPT_BYTES) {
        attn_free_aligned(remove_kept(0));
    }
    kept.blocks[kept.n++] = block;
    kept.bytes += block->capacity;
    atomic_flag_clear(&kept.busy);
}

/* Rounds up to one of eight sizes for each power of two, so that kept blocks fit again. */
static size_t
capacity_for(size_t size)
{
    size_t step = 1;

    while (size / step > 16) {
        step *= 2;
    }
    return (size + step - 1) / step * step;
}

/* Frees all kept blocks; returns whether there were any. Another thread is soon done
 * with the list; the child of a fork may wait for a thread that it does not have, and
 * gives up. */
static bool
free_kept(void)
{
    bool busy = true, any;

    for (int i = 0; busy && i < 1000; i++) {
        busy = atomic_flag_test_and_set(&kept.busy);
        if (busy) {
            sched_yield();
        }
    }
    if (busy) {
        return false;
    }
    any = kept.n > 0;
    while (kept.n > 0) {
        attn_free_aligned(remove_kept(0));
    }
    atomic_flag_clear(&kept.busy);
    return any;
}

/* Aligned memory, or NULL if there is none even after all kept blocks were freed. */
static void *
allocate_aligned(size_t size)
{
    void *memory;

    do {
        memory = attn_allocate_aligned(ATTN_ALIGNMENT, size);
    } while (memory == NULL && free_kept());
    return memory;
}

/* The same for the core's workspaces. */
static void *
allocate_workspace(size_t size)
{
    void *memory;

    do {
        memory = malloc(size);
    } while (memory == NULL && free_kept());
    return memory;
}

static header *
new_block(size_t capacity)
{
    header *block = capacity > SIZE_MAX - sizeof(header)
                        ? NULL
                        : allocate_aligned(capacity + sizeof(header));

    if (block == NULL) {
        return NULL;
    }
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

bool
py_try_again(void)
{
    if (!PyErr_ExceptionMatches(PyExc_MemoryError) || !free_kept()) {
        return false;
    }
    PyErr_Clear();
    return true;
}

/* A new array on our memory, which NumPy returns to us when the array dies. So it is an
 * array like any other, which owns its elements and can be resized, and NumPy's
 * handlers for other arrays do not change. */
static PyArrayObject *
new_array_on(void *data, int n_axes, const npy_intp *shape, PyArray_Descr *descr,
             size_t size)
{
    PyArrayObject *array = (PyArrayObject *)PyArray_NewFromDescr(
        &PyArray_Type, descr, n_axes, shape, NULL, data, NPY_ARRAY_CARRAY, NULL);

    if (array == NULL) {
        attn_free_aligned((header *)data - 1); /* not kept: this may be tried again */
        return NULL;
    }
    ((PyArrayObject_fields *)array)->mem_handler = Py_NewRef(handler);
    PyArray_ENABLEFLAGS(array, NPY_ARRAY_OWNDATA);
    (void)PyTraceMalloc_Track(TRACE_DOMAIN, (uintptr_t)data, size);
    return array;
}

/* The number of bytes, or -1 if that overflows, for which NumPy has an error. */
static npy_intp
size_of(int n_axes, const npy_intp *shape, PyArray_Descr *descr)
{
    npy_intp n = PyArray_OverflowMultiplyList(shape, n_axes);
    npy_intp size;

    return n < 0 || __builtin_mul_overflow(n, PyDataType_ELSIZE(descr), &size) ? -1
                                                                               : size;
}

int
py_check_size(int n_axes, const npy_intp *shape, const char *name)
{
    npy_intp n_bytes = sizeof(double);
    PyObject *wrong;

    for (int axis = 0; axis < n_axes; axis++) {
        /* NumPy refuses such shapes even if another length is 0. */
        npy_intp length = shape[axis] > 0 ? shape[axis] : 1;

        if (__builtin_mul_overflow(n_bytes, length, &n_bytes)) {
            wrong = PyArray_IntTupleFromIntp(n_axes, shape);
            if (wrong != NULL) {
                PyErr_Format(PyExc_MemoryError,
                             "%s: expected a shape that memory can hold, got %S", name,
                             wrong);
                Py_DECREF(wrong);
            }
            return -1;
        }
    }
    return 0;
}

PyArrayObject *
py_new_array(int n_axes, const npy_intp *shape, int type)
{
    PyArray_Descr *descr;
    PyArrayObject *array;

    if (py_check_size(n_axes, shape, "result") < 0) {
        return NULL;
    }
    descr = PyArray_DescrFromType(type);
    if (descr == NULL) {
        return NULL;
    }
    npy_intp size = size_of(n_axes, shape, descr);
    do { /* without memory, NumPy raises the error */
        void *data = size < OURS ? NULL : allocate(NULL, (size_t)size);
        Py_INCREF(descr);
        array = data == NULL ? (PyArrayObject *)PyArray_Empty(n_axes, shape, descr, 0)
                             : new_array_on(data, n_axes, shape, descr, (size_t)size);
    } while (array == NULL && py_try_again());
    Py_DECREF(descr);
    return array;
}

PyArrayObject *
py_new_zeros(int n_axes, const npy_intp *shape, int type)
{
    PyArrayObject *array;

    if (py_check_size(n_axes, shape, "result") < 0) {
        return NULL;
    }
    do {
        array = (PyArrayObject *)PyArray_ZEROS(n_axes, shape, type, 0);
    } while (array == NULL && py_try_again());
    return array;
}

PyArrayObject *
py_new_strided(int n_axes, const npy_intp *shape, int type, const npy_intp *strides,
               void *data)
{
    PyArrayObject *array;

    do {
        array = (PyArrayObject *)PyArray_New(
            &PyArray_Type, n_axes, shape, type, strides, data, 0,
            data == NULL ? 0 : NPY_ARRAY_BEHAVED, NULL);
    } while (array == NULL && py_try_again());
    return array;
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
        attn_hook.allocate = allocate_workspace;
        handler = PyCapsule_New(&functions, "mem_handler", NULL);
    }
    return handler == NULL ? -1 : 0;
}
