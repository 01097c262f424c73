/* array_at(): an array on memory that another library keeps, in a third of the time that
 * numpy.ndarray() takes. */
#include "python/foreign.h"

#include "core/limits.h"
#include "python/numbers.h"

/* Reads a tuple of numbers, each times `unit`, into `to`; their number, or -1. */
static int
read_tuple(PyObject *object, const char *name, npy_intp unit, npy_intp *to)
{
    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) > ATTN_MAX_AXES) {
        PyErr_Format(PyExc_TypeError, "%s: expected a tuple of at most %d, got %R",
                     name, ATTN_MAX_AXES, object);
        return -1;
    }
    int n = (int)PyTuple_GET_SIZE(object);
    for (int i = 0; i < n; i++) {
        Py_ssize_t number = PyLong_AsSsize_t(PyTuple_GET_ITEM(object, i));

        if (number == -1 && PyErr_Occurred()) {
            return -1;
        }
        to[i] = number * unit;
    }
    return n;
}

PyDoc_STRVAR(
    array_at_doc,
    "array_at(address, shape, strides, dtype, owner, /)\n--\n\nAn array on the "
    "memory at an address, which `owner`, unless it is None, keeps. Strides "
    "count elements; None means contiguous.");

static PyObject *
array_at(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    npy_intp shape[ATTN_MAX_AXES], strides[ATTN_MAX_AXES];
    PyObject *owner;
    PyArrayObject *array;
    PyArray_Descr *dtype;
    void *address;
    int n_axes;

    (void)module;
    if (py_check_count(n_arguments, 5, 5) < 0) {
        return NULL;
    }
    if (!PyArray_DescrCheck(arguments[3])) {
        PyErr_Format(PyExc_TypeError, "dtype: expected a numpy.dtype, got %R",
                     arguments[3]);
        return NULL;
    }
    dtype = (PyArray_Descr *)arguments[3];
    owner = arguments[4];
    address = PyLong_AsVoidPtr(arguments[0]);
    if ((address == NULL && PyErr_Occurred()) ||
        (n_axes = read_tuple(arguments[1], "shape", 1, shape)) < 0) {
        return NULL;
    }
    if (arguments[2] != Py_None) {
        int n = read_tuple(arguments[2], "strides", PyDataType_ELSIZE(dtype), strides);

        if (n != n_axes) {
            return n < 0 ? NULL
                         : PyErr_Format(PyExc_ValueError,
                                        "strides: expected %d of them, got %d", n_axes,
                                        n);
        }
    }
    array = (PyArrayObject *)PyArray_NewFromDescr(
        &PyArray_Type, (PyArray_Descr *)Py_NewRef((PyObject *)dtype), n_axes, shape,
        arguments[2] == Py_None ? NULL : strides, address, NPY_ARRAY_CARRAY, NULL);
    if (array == NULL) {
        return NULL;
    }
    PyArray_UpdateFlags(array, NPY_ARRAY_ALIGNED);
    if (owner != Py_None && PyArray_SetBaseObject(array, Py_NewRef(owner)) < 0) {
        Py_CLEAR(array);
    }
    return (PyObject *)array;
}

PyMethodDef py_foreign_methods[] = {
    {"array_at", PY_FUNCTION(array_at), METH_FASTCALL, array_at_doc},
    {NULL, NULL, 0, NULL},
};
