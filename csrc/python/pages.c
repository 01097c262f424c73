/* page_table. */
#include "python/pages.h"

#include "python/arrays.h"
#include "python/memory.h"

static int
check_shape(PyArrayObject *pages, const char *name, const char *expected)
{
    if (PyArray_NDIM(pages) != 4 || PyArray_DIM(pages, 2) != ATTN_BLOCK) {
        return py_fail_shape(pages, name, expected, ATTN_BLOCK, 0);
    }
    return 0;
}

/* The longest length, within that of the pages: what is beyond is refused later. */
static ptrdiff_t
longest_length(PyArrayObject *kv_lengths, ptrdiff_t n_keys)
{
    const int64_t *lengths = PyArray_DATA(kv_lengths);
    int64_t longest = 0;

    for (npy_intp i = 0; i < PyArray_SIZE(kv_lengths); i++) {
        longest = lengths[i] > longest ? lengths[i] : longest;
    }
    return longest < n_keys ? (ptrdiff_t)longest : n_keys;
}

int
py_read_pages(const py_attention_arrays *a, attn_problem *p)
{
    if (PyArray_NDIM(a->page_table) < 1) {
        return py_fail_shape(a->page_table, "page_table", "(..., n)", 0, 0);
    }
    if (check_shape(a->key, "key", "(pages, Hk, %zd, D) with page_table") < 0 ||
        check_shape(a->value, "value", "(pages, Hk, %zd, Dv) with page_table") < 0) {
        return -1;
    }
    if (PyArray_DIM(a->value, 0) != PyArray_DIM(a->key, 0)) {
        return py_fail_shape(a->value, "value", "as many pages as key, %zd",
                             PyArray_DIM(a->key, 0), 0);
    }
    if (a->key_starts != NULL) {
        PyErr_SetString(PyExc_ValueError,
                        "seq_offsets: expected a pair (of queries, None) with "
                        "page_table, got offsets of keys");
        return -1;
    }
    npy_intp n = py_axis_length(a->page_table, 0);
    p->n_keys = n > PTRDIFF_MAX / ATTN_BLOCK ? PTRDIFF_MAX : n * ATTN_BLOCK;
    if (a->ends_with_lengths && a->kv_lengths != NULL) {
        p->n_keys = longest_length(a->kv_lengths, p->n_keys);
    }
    return 0;
}

int
py_broadcast_pages(const py_attention_arrays *a, attn_problem *p)
{
    bool grows = a->query_starts == NULL; /* else there are n sequences */

    if (PyArray_NDIM(a->page_table) - 1 > p->batch.n_axes) {
        return py_fail_shape(a->page_table, "page_table",
                             "(n, pages) or (pages,) with seq_offsets", 0, 0);
    }
    for (int axis = 0; axis < p->batch.n_axes; axis++) {
        npy_intp length = py_axis_length(a->page_table, p->batch.n_axes - axis);
        if (length == 1 || length == p->batch.shape[axis]) {
            continue;
        }
        if (p->batch.shape[axis] != 1 || !grows) {
            return py_fail_shape(a->page_table, "page_table",
                                 "axes before the last that broadcast with query's "
                                 "before the head axis (%zd, not %zd)",
                                 p->batch.shape[axis], length);
        }
        p->batch.shape[axis] = length;
    }
    return 0;
}

ptrdiff_t
py_page_stride(const PyArrayObject *pages)
{
    return PyArray_DIM(pages, 0) > 1 ? PyArray_STRIDE(pages, 0) : 0;
}

/* The same of scales (pages, Hk, 128), which may broadcast. */
static ptrdiff_t
scale_stride(PyArrayObject *scales)
{
    return scales == NULL ? 0 : py_axis_stride(scales, 2);
}

int
py_set_pages(py_attention_arrays *a, attn_problem *p)
{
    npy_intp shape[2] = {p->batch.n, py_axis_length(a->page_table, 0)};

    if (py_check_size(2, shape, "page_table") < 0) {
        return -1;
    }
    a->pages_of_batches = py_new_array(2, shape, NPY_INT64);
    if (a->pages_of_batches == NULL) {
        return -1;
    }
    for (int axis = 0; axis < p->batch.n_axes; axis++) {
        p->key.batch_stride[axis] = p->value.batch_stride[axis] = 0;
        p->key_scale.batch_stride[axis] = p->value_scale.batch_stride[axis] = 0;
    }
    a->pages = (attn_pages){.table = PyArray_DATA(a->pages_of_batches),
                            .n = shape[1],
                            .key_stride = py_page_stride(a->key),
                            .value_stride = py_page_stride(a->value),
                            .key_scale_stride = scale_stride(a->key_scale),
                            .value_scale_stride = scale_stride(a->value_scale)};
    p->pages = &a->pages;
    return py_update_pages(a, p);
}

int
py_update_pages(const py_attention_arrays *a, const attn_problem *p)
{
    int64_t *to;
    int64_t n_pages;
    attn_array from;

    if (a->page_table == NULL) {
        return 0;
    }
    to = PyArray_DATA(a->pages_of_batches);
    n_pages = PyArray_DIM(a->key, 0);
    py_describe(&from, a->page_table, 2, p->batch.n_axes); /* pages are its heads */
    for (ptrdiff_t b = 0; b < p->batch.n; b++) {
        for (ptrdiff_t i = 0; i < a->pages.n; i++) {
            const char *at = attn_address(&from, &p->batch, b, i, 0);
            int64_t page = *(const volatile int64_t *)(const void *)at; /* read once */
            if (page < 0 || page >= n_pages) {
                PyErr_Format(PyExc_ValueError,
                             "page_table: expected numbers of the %lld pages, from 0 "
                             "on, got %lld",
                             (long long)n_pages, (long long)page);
                return -1;
            }
            *to++ = page;
        }
    }
    return 0;
}
