/* What dtypes are, and where elements of arrays lie. */
#include "core/array.h"

#include "support/check.h"

enum { MAX_AXES = 3, N_HEADS = 2, N_ROWS = 3 };

/* ---- Storage ------------------------------------------------------------------------ */

void
test_dtypes_are_stored_as_their_table_says(void)
{
    static const struct {
        attn_dtype dtype;
        size_t bytes;
        attn_kind kind;
        attn_dtype arithmetic;
        ptrdiff_t packed_rows;
    } right[] = {{ATTN_F16, sizeof(uint16_t), ATTN_HALF, ATTN_F32, 1},
                 {ATTN_BF16, sizeof(uint16_t), ATTN_HALF, ATTN_F32, 2},
                 {ATTN_F32, sizeof(float), ATTN_REAL, ATTN_F32, 1},
                 {ATTN_F64, sizeof(double), ATTN_REAL, ATTN_F64, 1},
                 {ATTN_I8, 1, ATTN_INTEGER, ATTN_F32, 1},
                 {ATTN_I16, 2, ATTN_INTEGER, ATTN_F32, 1}};
    const size_t n_dtypes = sizeof right / sizeof right[0];

    expect(n_dtypes == ATTN_N_DTYPES, "there are %d dtypes", ATTN_N_DTYPES);
    for (size_t k = 0; k < n_dtypes; k++) {
        const attn_storage *storage = attn_storage_of(right[k].dtype);
        expect(storage->bytes == (ptrdiff_t)right[k].bytes, "dtype %zu: %td bytes", k,
               storage->bytes);
        expect(storage->kind == right[k].kind, "dtype %zu is of another kind", k);
        expect(storage->arithmetic == right[k].arithmetic,
               "dtype %zu is computed in dtype %d", k, storage->arithmetic);
        expect(storage->packed_rows == right[k].packed_rows,
               "dtype %zu: %td packed rows", k, storage->packed_rows);
        expect(attn_is_half(right[k].dtype) == (right[k].kind == ATTN_HALF),
               "attn_is_half of dtype %zu", k);
    }
}

/* ---- Addresses ---------------------------------------------------------------------- */

/* Expects the addresses of all rows of one batch, whose first one is `at`. */
static void
expect_rows(const attn_array *array, const attn_batch *batch, ptrdiff_t b,
            const char *at)
{
    for (ptrdiff_t h = 0; h < N_HEADS; h++) {
        for (ptrdiff_t i = 0; i < N_ROWS; i++) {
            const char *right = at + h * array->head_stride + i * array->row_stride;
            expect(attn_address(array, batch, b, h, i) == right,
                   "%d axes: batch %td, head %td, row %td", batch->n_axes, b, h, i);
        }
    }
}

/* Batches are in the order of these loops; axes that are not there count 1. */
static void
expect_addresses(const attn_array *array, const attn_batch *batch)
{
    ptrdiff_t n[MAX_AXES] = {1, 1, 1}, stride[MAX_AXES] = {0}, b = 0;

    for (int axis = 0; axis < batch->n_axes; axis++) {
        n[axis] = batch->shape[axis];
        stride[axis] = array->batch_stride[axis];
    }
    for (ptrdiff_t x = 0; x < n[0]; x++) {
        for (ptrdiff_t y = 0; y < n[1]; y++) {
            for (ptrdiff_t z = 0; z < n[2]; z++) {
                expect_rows(array, batch, b++,
                            array->data + x * stride[0] + y * stride[1] +
                                z * stride[2]);
            }
        }
    }
    expect(b == batch->n, "%td batches", b);
}

void
test_addresses_are_sums_of_strides(void)
{
    static char memory[2000];
    static const ptrdiff_t shape[MAX_AXES] = {2, 3, 4};
    static const ptrdiff_t strides[][MAX_AXES] = {
        {300, 90, 20}, {20, 90, 300}, {-300, 90, -20}, {0, 90, 0}, {0, 0, 0}};
    const int n_strides = sizeof strides / sizeof strides[0];

    for (int k = 0; k < n_strides * (MAX_AXES + 1); k++) {
        attn_batch batch = {.n = 1, .n_axes = k / n_strides};
        attn_array array = {.data = memory + sizeof memory / 2,
                            .dtype = ATTN_F32,
                            .head_stride = 8,
                            .row_stride = k % 2 == 0 ? 4 : -4};
        for (int axis = 0; axis < batch.n_axes; axis++) {
            batch.shape[axis] = shape[axis];
            batch.n *= shape[axis];
            array.batch_stride[axis] = strides[k % n_strides][axis];
        }
        expect_addresses(&array, &batch);
        array.data = NULL;
        expect(attn_address(&array, &batch, batch.n - 1, 1, 1) == NULL,
               "%d axes: no array has an address", batch.n_axes);
    }
}
