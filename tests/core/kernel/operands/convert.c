/* Rows of every dtype and stride, on their way to reals and back: as elements one by one,
 * and nothing beside them, which the ends of their memory guard. */
#include "core/array.h"
#include "core/bytes.h"
#include "support/check.h"
#include "support/functions.h"
#include "support/problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ELEMENTS = 40 }; /* some vectors of any tier, and some more */

/* So many elements of a dtype, in memory of just that size. */
typedef struct {
    char *memory;
    char *first;
    ptrdiff_t stride;
    ptrdiff_t bytes;
} elements;

static elements
allocate_elements(attn_dtype dtype, ptrdiff_t n, ptrdiff_t step)
{
    ptrdiff_t size = attn_storage_of(dtype)->bytes, last = (n - 1) * step * size;
    elements e = {.stride = step * size};

    e.bytes = n == 0 ? 0 : size + (last < 0 ? -last : last);
    e.memory = malloc((size_t)(e.bytes > 0 ? e.bytes : 1));
    if (e.memory == NULL) {
        abort();
    }
    memset(e.memory, 0xa5, (size_t)e.bytes);
    e.first = n > 0 && last < 0 ? e.memory - last : e.memory;
    return e;
}

/* What a dtype may be given: codes of 16 bits are whole before they are stored. */
static double
random_number(attn_dtype dtype, uint64_t *state)
{
    double x = random_unit(state);
    return dtype == ATTN_I16 ? nearbyint(ATTN_LARGEST_SHORT * x) : x;
}

static void
expect_loads(const functions *f, attn_dtype dtype, ptrdiff_t n, ptrdiff_t step,
             uint64_t *state)
{
    attn_dtype real = f->bits == 32 ? ATTN_F32 : ATTN_F64;
    elements from = allocate_elements(dtype, n, step);
    elements to = allocate_elements(real, n, 1), want = allocate_elements(real, n, 1);

    for (ptrdiff_t k = 0; k < n; k++) {
        write_number(from.first + k * from.stride, dtype, random_number(dtype, state));
    }
    for (ptrdiff_t k = 0; k < n; k++) {
        double x = read_number(from.first + k * from.stride, dtype);
        write_number(want.first + k * want.stride, real, x);
    }
    f->load_row(to.first, from.first, from.stride, n, dtype);
    expect(memcmp(to.memory, want.memory, (size_t)to.bytes) == 0,
           "%s, %d bits: %td of %s, %td apart, are loaded wrong", f->tier, f->bits, n,
           dtype_name(dtype), step);
    free(from.memory);
    free(to.memory);
    free(want.memory);
}

static void
expect_stores(const functions *f, attn_dtype dtype, ptrdiff_t n, ptrdiff_t step,
              uint64_t *state)
{
    attn_dtype real = f->bits == 32 ? ATTN_F32 : ATTN_F64;
    elements from = allocate_elements(real, n, 1);
    elements to = allocate_elements(dtype, n, step);
    elements want = allocate_elements(dtype, n, step);

    for (ptrdiff_t k = 0; k < n; k++) {
        char *at = from.first + k * from.stride;
        write_number(at, real, random_number(dtype, state));
        write_number(want.first + k * want.stride, dtype, read_number(at, real));
    }
    f->store_row(to.first, to.stride, from.first, n, dtype);
    expect(memcmp(to.memory, want.memory, (size_t)to.bytes) == 0,
           "%s, %d bits: %td of %s, %td apart, are stored wrong", f->tier, f->bits, n,
           dtype_name(dtype), step);
    free(from.memory);
    free(to.memory);
    free(want.memory);
}

static void
expect_conversions(const functions *f, attn_dtype dtype, uint64_t *state)
{
    static const ptrdiff_t steps[] = {1, 2, -1, -3};

    for (ptrdiff_t n = 0; n <= MAX_ELEMENTS; n++) {
        for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++) {
            expect_loads(f, dtype, n, steps[k], state);
            expect_stores(f, dtype, n, steps[k], state);
        }
        expect_loads(f, dtype, n, 0, state);
    }
}

void
test_rows_are_converted_as_elements_are(void)
{
    const functions *f;
    uint64_t state = 61;

    for (int bits = 32; bits <= 64; bits += 32) {
        for (int t = 0; (f = functions_at(bits, t)) != NULL; t++) {
            for (int dtype = 0; dtype < ATTN_N_DTYPES; dtype++) {
                expect_conversions(f, (attn_dtype)dtype, &state);
            }
        }
    }
}
