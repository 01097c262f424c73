/* Preloaded into an interpreter: lets the allocations and threads of one thread fail.
 *
 * Between arming and disarming, calls number first .. first + n - 1 of malloc and its
 * kin, or of pthread_create, fail in the thread that armed; other threads go on as ever.
 * Where only the extension's count, those are the calls by it and by what it calls. Blocks
 * are counted always. Only for glibc, whose own functions have second names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
extern void *PyObject_CallNoArgs(void *) __attribute__((weak));

typedef struct {
    long first, n; /* which calls fail */
    long calls;    /* since arming */
    long failed;
} fault;

static __thread __attribute__((tls_model("initial-exec"))) struct {
    int armed;
    int only_extension;     /* only calls by way of the extension count */
    const uintptr_t *stack; /* where it was when armed */
    fault allocation, thread;
} faults;

static atomic_long n_blocks;

/* Where the extension lies: a range of addresses. */
static uintptr_t first_address, last_address;

static int
find_extension(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    if (strstr(info->dlpi_name, "/_attnpy.") == NULL) {
        return 0;
    }
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            first_address = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            last_address = first_address + info->dlpi_phdr[i].p_memsz;
        }
    }
    return 1;
}

/* Is this called, by way of what it calls, by the extension? */
static int
is_in_extension(void)
{
    /* A caller's address is on the stack. Mostly none is there, which is found at once. */
    const uintptr_t *word = __builtin_frame_address(0);
    while (word < faults.stack && (*word < first_address || last_address <= *word)) {
        word++;
    }
    if (word >= faults.stack) {
        return 0;
    }
    void *frames[40];
    int n = backtrace(frames, 40);

    for (int i = 0; i < n; i++) {
        uintptr_t address = (uintptr_t)frames[i];
        if (first_address <= address && address < last_address) {
            return 1;
        }
    }
    return 0;
}

static int
fails(fault *f)
{
    if (!faults.armed || f->calls - f->first >= f->n) {
        return 0; /* none fails any more: whose they are need not be known */
    }
    faults.armed = 0; /* what backtrace allocates does not count */
    int counts = !faults.only_extension || is_in_extension();
    faults.armed = 1;
    int hit = counts && f->calls >= f->first;
    f->calls += counts;
    f->failed += hit;
    return hit;
}

static void *
counted(void *block)
{
    n_blocks += block != NULL;
    return block;
}

static void *
out_of_memory(void)
{
    errno = ENOMEM;
    return NULL;
}

void *
malloc(size_t size)
{
    return fails(&faults.allocation) ? out_of_memory() : counted(__libc_malloc(size));
}

void *
calloc(size_t n, size_t size)
{
    return fails(&faults.allocation) ? out_of_memory()
                                     : counted(__libc_calloc(n, size));
}

/* What makes a block smaller never fails in glibc, but may elsewhere: it fails here. */
void *
realloc(void *block, size_t size)
{
    if (fails(&faults.allocation)) {
        return out_of_memory();
    }
    void *moved = __libc_realloc(block, size);
    if (block == NULL) {
        (void)counted(moved);
    } else if (moved == NULL && size == 0) {
        n_blocks--;
    }
    return moved;
}

void *
memalign(size_t alignment, size_t size)
{
    return fails(&faults.allocation) ? out_of_memory()
                                     : counted(__libc_memalign(alignment, size));
}

void *
aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int
posix_memalign(void **block, size_t alignment, size_t size)
{
    *block = memalign(alignment, size);
    return *block == NULL ? ENOMEM : 0;
}

void
free(void *block)
{
    n_blocks -= block != NULL;
    __libc_free(block);
}

int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
               void *(*start)(void *), void *argument)
{
    static int (*original)(pthread_t *, const pthread_attr_t *, void *(*)(void *),
                           void *);

    if (fails(&faults.thread)) {
        return EAGAIN;
    }
    if (original == NULL) {
        *(void **)&original = dlsym(RTLD_NEXT, "pthread_create");
    }
    return original(thread, attributes, start, argument);
}

long faults_blocks(void);
void *faults_call(void *function, int only_extension, long first, long n,
                  long first_thread, long n_threads, long counts[4]);

/* Blocks that are allocated and not yet freed. */
long
faults_blocks(void)
{
    return n_blocks;
}

/* Calls a function of Python's, armed: only what happens inside can fail. Counts are those
 * of allocations, failed ones, threads, failed ones. */
void *
faults_call(void *function, int only_extension, long first, long n, long first_thread,
            long n_threads, long counts[4])
{
    if (last_address == 0) {
        (void)dl_iterate_phdr(find_extension, NULL);
        void *frame[1];
        (void)backtrace(frame, 1); /* the first one loads a library */
    }
    faults.only_extension = only_extension;
    faults.stack = __builtin_frame_address(0);
    faults.allocation = (fault){.first = first, .n = n};
    faults.thread = (fault){.first = first_thread, .n = n_threads};
    faults.armed = 1;
    void *result = PyObject_CallNoArgs(function);
    faults.armed = 0;
    counts[0] = faults.allocation.calls;
    counts[1] = faults.allocation.failed;
    counts[2] = faults.thread.calls;
    counts[3] = faults.thread.failed;
    return result;
}
