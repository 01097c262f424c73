/* layer(): keys and values of new tokens in a cache. */
#include "python/layer.h"

#include "python/arrays.h"
#include "python/numbers.h"
#include "python/packed.h"

/* The sequences in a cache, an array of four axes: its own first axis, or that of the table
 * of its pages; -1 where that is none of one row for each. */
npy_intp
py_cached_sequences(const layer_call *c, const PyArrayObject *cache)
{
    const PyArrayObject *table = c->attention.page_table;

    if (table == NULL) {
        return PyArray_DIM(cache, 0);
    }
    return PyArray_NDIM(table) == 2 && PyArray_DIM(cache, 2) == ATTN_BLOCK
               ? PyArray_DIM(table, 0)
               : -1;
}

/* Do sequences, heads and their size match those of the cache? */
static bool
fits_cache(const layer_call *c, const projection *s)
{
    PyArrayObject *cache = s->cache, *heads = s->projected;
    bool packed = c->attention.query_starts != NULL;

    if (PyArray_NDIM(cache) != 4 || PyArray_NDIM(heads) != (packed ? 3 : 4)) {
        return false;
    }
    npy_intp n = py_cached_sequences(c, cache);
    return (packed ? py_has_sequences(&c->attention, n) : n == PyArray_DIM(heads, 0)) &&
           PyArray_DIM(cache, 1) == py_axis_length(heads, 2) &&
           PyArray_DIM(cache, 3) == py_axis_length(heads, 0);
}

/* A cache of int8: attention reads it in place, with its scales. */
static int
set_quantised_result(projection *s, const char *name)
{
    PyArrayObject *cache = s->cache, *scales = s->scales;
    bool fits = PyArray_NDIM(scales) == 3;

    for (int axis = 0; axis < 3 && fits; axis++) {
        fits = PyArray_DIM(scales, axis) == PyArray_DIM(cache, axis);
    }
    if (!fits) {
        return py_fail_shape(scales, name, "the scales of a cache, (B, Hk, Lk)", 0, 0);
    }
    if (PyArray_TYPE(cache) != NPY_BYTE || !PyArray_ISWRITEABLE(cache)) {
        return py_fail_dtype(cache, name, "a writable cache of int8 with scales");
    }
    if (PyArray_TYPE(scales) != NPY_FLOAT || !PyArray_ISBEHAVED(scales)) {
        return py_fail_dtype(
            scales, name, "writable, aligned scales of float32 in native byte order");
    }
    s->result = cache;
    Py_INCREF(cache);
    return 0;
}

/* With a cache: attention reads its rows in place, or a copy. */
int
py_set_cached_result(const layer_call *c, projection *s, const char *name, int type)
{
    PyArrayObject *cache = s->cache;
    int own = PyArray_TYPE(cache), wanted = py_readable(own, type);
    attn_dtype unused;

    if (s->scales == NULL && !py_storage_of(own, &unused)) {
        return py_fail_dtype(cache, name, "float64, float32, float16 or bfloat16");
    }
    if (!fits_cache(c, s)) {
        return py_fail_shape(s->projected, name,
                             "(B, Hk, L, D) as the cache's, with D = %zd",
                             py_axis_length(cache, 0), 0);
    }
    if (s->scales != NULL) {
        return set_quantised_result(s, name);
    }
    if (!PyArray_ISWRITEABLE(cache)) {
        PyErr_Format(PyExc_ValueError,
                     "cache: expected an array that can be written to as its %s, got a "
                     "read-only one",
                     name);
        return -1;
    }
    if (PyArray_ISBEHAVED(cache) && own == wanted) {
        s->result = cache;
        Py_INCREF(cache);
        return 0;
    }
    if (c->attention.page_table != NULL) {
        return py_fail_dtype(cache, "cache",
                             wanted == NPY_DOUBLE
                                 ? "aligned pages in float64, as the result is"
                                 : "aligned pages");
    }
    s->result = cache;
    Py_INCREF(cache);
    return py_copy_as(&s->result, wanted);
}

/* Checks that tokens have places in the cache, within its capacity. */
int
py_check_places(const layer_call *c)
{
    const projection *k = &c->parts[1];
    PyArrayObject *ends = c->attention.kv_lengths;
    npy_intp n_keys = py_axis_length(k->cache, 1);
    npy_intp n_batch = py_cached_sequences(c, k->cache);

    if (c->attention.page_table != NULL) {
        n_keys *= PyArray_DIM(c->attention.page_table, 1);
    }

    if (PyArray_NDIM(c->past_lengths) != 1 ||
        PyArray_DIM(c->past_lengths, 0) != n_batch || ends == NULL ||
        !PyArray_SAMESHAPE(c->past_lengths, ends)) {
        return py_fail_shape(c->past_lengths, "past_lengths", "(%zd,), as kv_lengths",
                             n_batch, 0);
    }
    for (npy_intp b = 0; b < n_batch; b++) {
        int64_t start = ((const int64_t *)PyArray_DATA(c->past_lengths))[b];
        int64_t end = ((const int64_t *)PyArray_DATA(ends))[b];
        int64_t n_new = k->rotary.n_tokens;
        if (c->attention.query_starts != NULL) {
            n_new = attn_packed_length(PyArray_DATA(c->attention.query_starts), b, 0);
        }
        if (py_check_range(start, "past_lengths", 0, n_keys) < 0 ||
            py_check_range(end, "kv_lengths", start, n_keys) < 0 ||
            py_check_range(end - start, "tokens", 0, n_new) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Tokens start .. end - 1 of a sequence in an array (B, heads, Lk, size). */
static PyArrayObject *
tokens_of(PyArrayObject *array, npy_intp batch, int64_t start, int64_t end)
{
    npy_intp shape[3] = {PyArray_DIM(array, 1), end - start, PyArray_DIM(array, 3)};
    char *data = PyArray_BYTES(array) + batch * PyArray_STRIDE(array, 0) +
                 start * PyArray_STRIDE(array, 2);

    Py_INCREF(PyArray_DESCR(array)); /* whose bytes may be in another order */
    return (PyArrayObject *)PyArray_NewFromDescr(&PyArray_Type, PyArray_DESCR(array), 3,
                                                 shape, PyArray_STRIDES(array) + 1,
                                                 data, NPY_ARRAY_WRITEABLE, NULL);
}

/* Copies the new tokens from the copy that attention read to the cache itself. */
int
py_cache_tokens(const layer_call *c, const projection *s)
{
    const int64_t *past_lengths = PyArray_DATA(c->past_lengths);
    const int64_t *ends = PyArray_DATA(c->attention.kv_lengths);
    int status = 0;

    for (npy_intp b = 0; b < PyArray_DIM(s->cache, 0) && status == 0; b++) {
        PyArrayObject *from = tokens_of(s->result, b, past_lengths[b], ends[b]);
        PyArrayObject *to = tokens_of(s->cache, b, past_lengths[b], ends[b]);
        status = from == NULL || to == NULL ? -1 : PyArray_CopyInto(to, from);
        Py_XDECREF(from);
        Py_XDECREF(to);
    }
    return status;
}
