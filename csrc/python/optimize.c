/* adamw(), sum_of_squares() and scale(), on contiguous arrays of one axis, in place. */
#include "python/optimize.h"

#include "core/optimize.h"
#include "python/arrays.h"
#include "python/lock.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/options.h"
#include "python/settings.h"

enum { PARAMETER, MEAN, SQUARE, GRADIENT, STORED, N_LINES };

/* Views a line of n numbers, or of any number if n is -1, that can be written to if it is not
 * the gradient. */
static int
view_line(PyObject *object, npy_intp n, bool is_written, attn_line *line,
          PyArrayObject **array)
{
    *array = py_view_of(object);
    if (*array == NULL || PyArray_NDIM(*array) != 1 || !PyArray_ISCARRAY_RO(*array) ||
        (is_written && !PyArray_ISWRITEABLE(*array)) ||
        !py_storage_of(PyArray_TYPE(*array), &line->dtype) || line->dtype == ATTN_F16 ||
        (n >= 0 && PyArray_DIM(*array, 0) != n)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError,
                            "numbers: expected contiguous arrays (n,) of float32, "
                            "float64 or bfloat16");
        }
        return -1;
    }
    line->n = PyArray_DIM(*array, 0);
    line->data = PyArray_DATA(*array);
    return 0;
}

/* A float, which may be infinite or NaN. */
static int
read_factor(PyObject *object, double *factor)
{
    if (!PyFloat_Check(object)) {
        PyErr_Format(PyExc_TypeError, "factor: expected a float, got %R", object);
        return -1;
    }
    *factor = PyFloat_AS_DOUBLE(object);
    return 0;
}

static int
read_factors(PyObject *group, attn_adamw_factors *f)
{
    double *const to[] = {&f->new_mean, &f->old_square, &f->new_square, &f->root,
                          &f->eps,      &f->rate,       &f->kept};
    enum { N = sizeof to / sizeof to[0] };
    PyObject *const *items = py_items(group, "factors", N);

    for (int i = 0; i < N && items != NULL; i++) {
        if (read_factor(items[i], to[i]) < 0) {
            return -1;
        }
    }
    return items == NULL ? -1 : 0;
}

/* Views all lines of a step. */
static int
view_lines(PyObject *const *objects, attn_line *lines, PyArrayObject **arrays)
{
    for (int i = 0; i < N_LINES; i++) {
        if (i == STORED && objects[i] == Py_None) {
            return 0;
        }
        if (view_line(objects[i], i == 0 ? -1 : lines[0].n, i != GRADIENT, &lines[i],
                      &arrays[i]) < 0) {
            return -1;
        }
        if (lines[i].dtype != (i == STORED ? ATTN_BF16 : lines[0].dtype) ||
            lines[0].dtype == ATTN_BF16 ||
            (i == STORED && lines[0].dtype != ATTN_F32)) {
            return py_fail_dtype(arrays[i], "numbers",
                                 "the parameter's float32 or float64, and bfloat16 for "
                                 "what is stored of float32");
        }
    }
    return 0;
}

PyDoc_STRVAR(
    adamw_doc,
    "adamw(parameter, mean, square, gradient, stored, factors, num_threads, /)\n--\n\n"
    "A step of AdamW with numbers (n,), in place. stored is None or bfloat16, to which "
    "parameter is rounded; factors are new_mean, old_square, new_square, root, eps, "
    "rate and kept.");

static PyObject *
adamw(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    enum { FACTORS = N_LINES, THREADS, N_ARGUMENTS };
    PyArrayObject *arrays[N_LINES] = {NULL};
    attn_line lines[N_LINES] = {{0}};
    attn_adamw_problem p = {0};
    attn_call call = {0};
    int status = -1;

    (void)module;
    if (py_check_count(n_arguments, N_ARGUMENTS, N_ARGUMENTS) < 0) {
        return NULL;
    }
    if (read_factors(arguments[FACTORS], &p.factors) == 0 &&
        py_threads_or_default(arguments[THREADS], &call.n_threads) == 0 &&
        py_parse_tier(Py_None, &call.tier) == 0 &&
        view_lines(arguments, lines, arrays) == 0) {
        p.n = lines[0].n;
        p.dtype = lines[0].dtype;
        p.parameter = lines[PARAMETER].data;
        p.mean = lines[MEAN].data;
        p.square = lines[SQUARE].data;
        p.gradient = lines[GRADIENT].data;
        p.stored = lines[STORED].data;
        py_lock lock;
        py_give_up_lock(&lock, 2 * attn_line_work(p.n), &call);
        attn_adamw(&p, &call);
        status = py_take_lock_back(&lock, 0, &call);
    }
    for (int i = 0; i < N_LINES; i++) {
        Py_XDECREF(arrays[i]);
    }
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

/* Views the line of a call that has one, when everything else is read. */
static int
read_line(PyObject *numbers, bool is_written, PyObject *threads, attn_line *line,
          PyArrayObject **array, attn_call *call)
{
    if (py_threads_or_default(threads, &call->n_threads) < 0 ||
        py_parse_tier(Py_None, &call->tier) < 0) {
        return -1;
    }
    return view_line(numbers, -1, is_written, line, array);
}

PyDoc_STRVAR(sum_of_squares_doc,
             "sum_of_squares(numbers, num_threads, /)\n--\n\nOf numbers (n,), in "
             "float64.");

static PyObject *
sum_of_squares(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    PyArrayObject *array = NULL;
    attn_call call = {0};
    attn_line line;
    double sum = 0;
    int status = -1;

    (void)module;
    if (py_check_count(n_arguments, 2, 2) < 0) {
        return NULL;
    }
    if (read_line(arguments[0], false, arguments[1], &line, &array, &call) == 0) {
        py_lock lock;
        py_give_up_lock(&lock, attn_line_work(line.n), &call);
        status =
            py_take_lock_back(&lock, attn_sum_of_squares(&line, &sum, &call), &call);
    }
    Py_XDECREF(array);
    return status < 0 ? NULL : PyFloat_FromDouble(sum);
}

PyDoc_STRVAR(scale_doc,
             "scale(numbers, factor, num_threads, /)\n--\n\nMultiply numbers "
             "(n,) in place.");

static PyObject *
scale(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    PyArrayObject *array = NULL;
    attn_call call = {0};
    attn_line line;
    double factor;
    int status = -1;

    (void)module;
    if (py_check_count(n_arguments, 3, 3) < 0) {
        return NULL;
    }
    if (read_factor(arguments[1], &factor) == 0 &&
        read_line(arguments[0], true, arguments[2], &line, &array, &call) == 0) {
        py_lock lock;
        py_give_up_lock(&lock, attn_line_work(line.n), &call);
        attn_scale(&line, factor, &call);
        status = py_take_lock_back(&lock, 0, &call);
    }
    Py_XDECREF(array);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

PyMethodDef py_optimize_methods[] = {
    {"adamw", PY_FUNCTION(adamw), METH_FASTCALL, adamw_doc},
    {"sum_of_squares", PY_FUNCTION(sum_of_squares), METH_FASTCALL, sum_of_squares_doc},
    {"scale", PY_FUNCTION(scale), METH_FASTCALL, scale_doc},
    {NULL, NULL, 0, NULL},
};
