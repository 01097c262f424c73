/* Objects as numbers. */
#include "python/numbers.h"

#include "core/limits.h"
#include "core/tasks.h"
#include "python/objects.h"

int
py_check_count(Py_ssize_t n_arguments, Py_ssize_t least, Py_ssize_t most)
{
    if (n_arguments >= least && n_arguments <= most) {
        return 0;
    }
    if (least == most) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", least,
                     n_arguments);
    } else {
        PyErr_Format(PyExc_TypeError, "expected %zd to %zd arguments, got %zd", least,
                     most, n_arguments);
    }
    return -1;
}

int
py_check_range(int64_t number, const char *name, int64_t low, int64_t high)
{
    if (number >= low && number <= high) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%s: expected %lld to %lld, got %lld", name,
                 (long long)low, (long long)high, (long long)number);
    return -1;
}

int
py_parse_flag(PyObject *object, const char *name)
{
    if (!PyBool_Check(object) && !PyArray_IsScalar(object, Bool)) {
        PyErr_Format(PyExc_TypeError, "%s: expected a bool, got %s", name,
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    return PyObject_IsTrue(object);
}

/* Replaces the error of an object that is no number by one that names the argument.
 * What the object's own code raises besides a TypeError stays, unless it has axes. */
static void
explain(PyObject *object, const char *name, const char *expected)
{
    PyObject *type, *value, *traceback, *shape, *sizes;

    if (!PyErr_ExceptionMatches(PyExc_TypeError) &&
        !PyErr_ExceptionMatches(PyExc_ValueError) &&
        !PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        return;
    }
    PyErr_Fetch(&type, &value, &traceback);
    shape = PyObject_GetAttrString(object, "shape");
    sizes = shape == NULL ? NULL : PySequence_Tuple(shape);
    if (sizes == NULL && py_forget_error() < 0) {
        /* that one stays */
    } else if (sizes != NULL && PyTuple_GET_SIZE(sizes) > 0) {
        PyErr_Format(PyExc_TypeError, "%s: expected %s, got %s of shape %S", name,
                     expected, Py_TYPE(object)->tp_name, sizes);
    } else if (PyErr_GivenExceptionMatches(type, PyExc_TypeError)) {
        PyErr_Format(PyExc_TypeError, "%s: expected %s, got %s", name, expected,
                     Py_TYPE(object)->tp_name);
    } else {
        PyErr_Restore(type, value, traceback);
        type = value = traceback = NULL;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    Py_XDECREF(sizes);
    Py_XDECREF(shape);
}

/* Refuses booleans, which convert to numbers. */
static int
check_not_boolean(PyObject *object, const char *name, const char *expected)
{
    int is_boolean = py_is_boolean(object);

    if (is_boolean > 0) {
        PyErr_Format(PyExc_TypeError, "%s: expected %s, got %s", name, expected,
                     PyBool_Check(object) || PyArray_IsScalar(object, Bool)
                         ? Py_TYPE(object)->tp_name
                         : "an array of booleans");
    }
    return is_boolean == 0 ? 0 : -1;
}

int
py_parse_number(PyObject *object, const char *name, double *number)
{
    if (!PyFloat_CheckExact(object) &&
        check_not_boolean(object, name, "a number") < 0) {
        return -1;
    }
    double x = PyFloat_AsDouble(object);

    if (x == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Format(PyExc_ValueError, "%s: expected a finite number, got %R", name,
                         object);
        } else {
            explain(object, name, "a number");
        }
        return -1;
    }
    if (!isfinite(x)) {
        PyErr_Format(PyExc_ValueError, "%s: expected a finite number, got %R", name,
                     object);
        return -1;
    }
    *number = x;
    return 0;
}

PyObject *
py_as_index(PyObject *object, const char *name)
{
    PyObject *index = NULL;

    if (check_not_boolean(object, name, "an integer") == 0) {
        index = PyNumber_Index(object);
        if (index == NULL) {
            explain(object, name, "an integer");
        }
    }
    return index;
}

int
py_parse_integer(PyObject *object, const char *name, int64_t *number, int *overflow)
{
    PyObject *index = py_as_index(object, name);

    if (index == NULL) {
        return -1;
    }
    *number = PyLong_AsLongLongAndOverflow(index, overflow);
    Py_DECREF(index);
    return PyErr_Occurred() ? -1 : 0;
}

int
py_parse_threads(PyObject *object, int *n_threads)
{
    int64_t n;
    int overflow;

    if (py_parse_integer(object, "num_threads", &n, &overflow) < 0) {
        return -1;
    }
    if (overflow < 0 || (overflow == 0 && n < 1)) {
        PyErr_Format(PyExc_ValueError, "num_threads: expected at least 1, got %R",
                     object);
        return -1;
    }
    *n_threads = overflow == 0 && n < ATTN_MAX_THREADS ? (int)n : ATTN_MAX_THREADS;
    return 0;
}

int
py_threads_or_default(PyObject *object, int *n_threads)
{
    *n_threads = attn_get_num_threads();
    return object == Py_None ? 0 : py_parse_threads(object, n_threads);
}
