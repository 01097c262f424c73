/* columns(). A model looks up its tokens in a table that is the transpose of such a matrix. */
#include "python/columns.h"

#include "core/cpu.h"
#include "python/arrays.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/weight.h"

/* Reads the matrix, and checks the numbers of columns. */
static int
check(py_weight *w, PyArrayObject *columns)
{
    const int64_t *numbers = PyArray_DATA(columns);
    attn_dtype unused;

    if (!w->is_quantized) {
        PyErr_SetString(PyExc_TypeError, "weight: expected a quantised matrix");
        return -1;
    }
    if (py_cast_weight(w, w->type, &unused) < 0) {
        return -1;
    }
    for (npy_intp i = 0; i < PyArray_SIZE(columns); i++) {
        if (py_check_range(numbers[i], "columns", 0, py_weight_columns(w) - 1) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyArrayObject *
compute(const py_weight *w, PyArrayObject *columns)
{
    npy_intp n = PyArray_SIZE(columns), n_rows = py_weight_rows(w);
    int n_axes = PyArray_NDIM(columns);
    const int64_t *numbers = PyArray_DATA(columns);
    npy_intp shape[ATTN_MAX_AXES];
    PyArrayObject *result;

    if (n_axes == ATTN_MAX_AXES) {
        (void)py_fail_shape(columns, "columns", "fewer axes", 0, 0);
        return NULL;
    }
    memcpy(shape, PyArray_DIMS(columns), (size_t)n_axes * sizeof *shape);
    shape[n_axes] = n_rows;
    result = py_new_array(n_axes + 1, shape, NPY_FLOAT);
    if (result == NULL) {
        return NULL;
    }
    float *to = PyArray_DATA(result);
    uint32_t control_word = attn_fp_control_reset();
    Py_BEGIN_ALLOW_THREADS
        for (npy_intp i = 0; i < n; i++) {
            attn_dequantize_column(&w->quantized, n_rows, numbers[i], to + i * n_rows);
        }
    Py_END_ALLOW_THREADS
    attn_fp_control_restore(control_word);
    return result;
}

PyDoc_STRVAR(
    columns_doc,
    "columns(weight, columns, /)\n--\n\nWhat columns (...) of a QuantizedWeight "
    "(K, M) stand for, (..., K), in float32.");

static PyObject *
columns(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    py_weight w = {.array = NULL};
    PyArrayObject *numbers = NULL, *result = NULL;

    (void)module;
    if (py_check_count(n_arguments, 2, 2) < 0) {
        return NULL;
    }
    if (arguments[1] == Py_None) {
        PyErr_SetString(PyExc_TypeError, "columns: expected integers, got None");
        return NULL;
    }
    if (py_copy_integers(arguments[1], "columns", &numbers) == 0 &&
        py_as_weight(arguments[0], "weight", &w) == 0 && check(&w, numbers) == 0) {
        result = compute(&w, numbers);
    }
    py_release_weight(&w);
    Py_XDECREF(numbers);
    return (PyObject *)result;
}

PyMethodDef py_columns_methods[] = {
    {"columns", PY_FUNCTION(columns), METH_FASTCALL, columns_doc},
    {NULL, NULL, 0, NULL},
};
