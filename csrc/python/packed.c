/* seq_offsets. */
#include "python/packed.h"

#include "python/arrays.h"
#include "python/numbers.h"
#include "python/objects.h"

static bool
is_number(PyObject *object)
{
    return PyLong_Check(object) || PyArray_IsScalar(object, Integer);
}

/* A tuple of two numbers is an array for one sequence, any other one a pair. */
static bool
is_pair(PyObject *object)
{
    return PyTuple_Check(object) && PyTuple_GET_SIZE(object) == 2 &&
           !is_number(PyTuple_GET_ITEM(object, 0)) &&
           !is_number(PyTuple_GET_ITEM(object, 1));
}

int
py_convert_starts(PyObject *object, py_attention_arrays *a)
{
    int status;

    if (!is_pair(object)) {
        if (py_copy_integers(object, "seq_offsets", &a->query_starts) < 0) {
            return -1;
        }
        a->key_starts = a->query_starts;
        Py_XINCREF(a->key_starts);
        return 0;
    }
    PyObject *queries = Py_NewRef(PyTuple_GET_ITEM(object, 0));
    PyObject *keys = Py_NewRef(PyTuple_GET_ITEM(object, 1));
    status = py_copy_integers(queries, "seq_offsets", &a->query_starts) < 0
                 ? -1
                 : py_copy_integers(keys, "seq_offsets", &a->key_starts);
    Py_DECREF(queries);
    Py_DECREF(keys);
    return status;
}

bool
py_is_packed(const py_attention_arrays *a)
{
    return a->query_starts != NULL || a->key_starts != NULL;
}

bool
py_has_sequences(const py_attention_arrays *a, npy_intp n)
{
    return PyArray_NDIM(a->query_starts) == 1 &&
           PyArray_DIM(a->query_starts, 0) == n + 1;
}

/* Checks where sequences begin in an array of n_rows, and finds the longest. */
static int
check_starts(PyArrayObject *starts, npy_intp n_rows, ptrdiff_t *longest)
{
    npy_intp n = PyArray_NDIM(starts) == 1 ? PyArray_DIM(starts, 0) : 0;
    const int64_t *numbers = PyArray_DATA(starts);
    bool valid = n > 0 && numbers[0] == 0 && numbers[n - 1] == n_rows;

    *longest = 0;
    for (npy_intp i = 1; valid && i < n; i++) {
        valid = numbers[i - 1] <= numbers[i] && numbers[i] <= n_rows;
        ptrdiff_t length = valid ? (ptrdiff_t)(numbers[i] - numbers[i - 1]) : 0;
        *longest = length > *longest ? length : *longest;
    }
    if (valid) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError,
                 "seq_offsets: expected (n + 1,) integers ascending from 0 to the %zd "
                 "rows of the packed array, got %S",
                 n_rows, (PyObject *)starts);
    return -1;
}

/* A packed array has no batch axis; another one has at most one, of n. */
static int
check_axes(PyArrayObject *array, const char *name, bool packed, npy_intp n)
{
    if (packed && PyArray_NDIM(array) != 3) {
        return py_fail_shape(array, name, "(heads, T, size) with seq_offsets", 0, 0);
    }
    npy_intp length = py_axis_length(array, 3);
    if (PyArray_NDIM(array) > 4 || (length != 1 && length != n)) {
        return py_fail_shape(array, name,
                             "at most one axis before the head axis with seq_offsets, "
                             "of %zd sequences",
                             n, 0);
    }
    return 0;
}

int
py_set_starts(py_attention_arrays *a, attn_problem *p)
{
    PyArrayObject *some = a->query_starts != NULL ? a->query_starts : a->key_starts;
    npy_intp n = PyArray_NDIM(some) == 1 ? PyArray_DIM(some, 0) - 1 : 0;

    a->packed = (attn_packed){NULL, NULL};
    if (check_axes(a->query, "query", a->query_starts != NULL, n) < 0) {
        return -1;
    }
    if (a->page_table == NULL &&
        (check_axes(a->key, "key", a->key_starts != NULL, n) < 0 ||
         check_axes(a->value, "value", a->key_starts != NULL, n) < 0)) {
        return -1;
    }
    if (a->query_starts != NULL) {
        if (check_starts(a->query_starts, PyArray_DIM(a->query, 1), &p->n_queries) <
            0) {
            return -1;
        }
        a->packed.queries = PyArray_DATA(a->query_starts);
    }
    if (a->key_starts != NULL) {
        if (check_starts(a->key_starts, PyArray_DIM(a->key, 1), &p->n_keys) < 0) {
            return -1;
        }
        a->packed.keys = PyArray_DATA(a->key_starts);
    }
    if (a->key_starts != NULL && PyArray_DIM(a->key_starts, 0) != n + 1) {
        return py_fail_shape(a->key_starts, "seq_offsets",
                             "(%zd,) for keys, as for queries", n + 1, 0);
    }
    p->packed = &a->packed;
    p->batch.n_axes = 1;
    p->batch.shape[0] = n;
    return 0;
}

int
py_check_lengths(const attn_problem *p)
{
    const int64_t *starts = attn_key_starts(p->packed);

    for (ptrdiff_t b = 0; b < p->batch.n && starts != NULL; b++) {
        const char *at = attn_address(&p->kv_lengths, &p->batch, b, 0, 0);
        ptrdiff_t n_keys = attn_packed_length(starts, b, 0);
        if (at != NULL && py_check_range(*(const int64_t *)(const void *)at,
                                         "kv_lengths", 0, n_keys) < 0) {
            return -1;
        }
    }
    return 0;
}
