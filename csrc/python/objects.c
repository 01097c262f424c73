/* From the user's objects to arrays of our own. */
#include "python/objects.h"

#include "python/arrays.h"

#include <string.h>

PyArrayObject *
py_view_of(PyObject *object)
{
    if (!PyArray_Check(object)) {
        return NULL;
    }
    return (PyArrayObject *)PyArray_View((PyArrayObject *)object, NULL, &PyArray_Type);
}

int
py_forget_error(void)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception) ||
        PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

PyObject *
py_find_attribute(const char *module_name, const char *name)
{
    PyObject *key = PyUnicode_FromString(module_name);
    PyObject *module = key == NULL ? NULL : PyImport_GetModule(key);
    PyObject *found = module == NULL ? NULL : PyObject_GetAttrString(module, name);

    Py_XDECREF(key);
    if (module != NULL && found == NULL &&
        PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
    }
    Py_XDECREF(module);
    return found;
}

/* An item of a list or tuple; NULL without an error past the end, as other code may
 * have removed items meanwhile. */
static PyObject *
item_of(PyObject *sequence, Py_ssize_t i)
{
    if (PyTuple_Check(sequence)) {
        return i < PyTuple_GET_SIZE(sequence) ? Py_NewRef(PyTuple_GET_ITEM(sequence, i))
                                              : NULL;
    }
#if PY_VERSION_HEX >= 0x030d0000 /* the first one that runs without a lock */
    PyObject *item = PyList_GetItemRef(sequence, i);
    if (item == NULL) {
        PyErr_Clear();
    }
    return item;
#else
    return i < PyList_GET_SIZE(sequence) ? Py_NewRef(PyList_GET_ITEM(sequence, i))
                                         : NULL;
#endif
}

/* Is the object, or does a list contain, a masked array of numpy.ma? -1 on error. Lists
 * are searched down to `depth`: deeper ones make no array. */
static int
has_mask(PyObject *object, int depth)
{
    PyObject *type, *item;
    int found = 0;

    if (PyList_Check(object) || PyTuple_Check(object)) {
        for (Py_ssize_t i = 0;
             depth > 0 && found == 0 && (item = item_of(object, i)) != NULL; i++) {
            found = PyFloat_Check(item) || PyLong_Check(item)
                        ? 0
                        : has_mask(item, depth - 1);
            Py_DECREF(item);
        }
        return found;
    }
    if (!PyArray_Check(object) || PyArray_CheckExact(object)) {
        return 0;
    }
    type = py_find_attribute("numpy.ma", "MaskedArray");
    if (type == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    found = PyObject_IsInstance(object, type);
    Py_DECREF(type);
    return found;
}

/* Refuses masked arrays. */
static int
check_mask(PyObject *object, const char *name, const char *expected)
{
    int masked = has_mask(object, NPY_MAXDIMS);

    if (masked > 0) {
        PyErr_Format(PyExc_TypeError,
                     "%s: expected an array without its own mask, got a "
                     "numpy.ma.MaskedArray, whose %s",
                     name, expected);
    }
    return masked == 0 ? 0 : -1;
}

/* Replaces NumPy's error about an object by one that names the argument, where
 * _checks.unreadable knows what is wrong. */
static void
explain(PyObject *object, const char *name)
{
    PyObject *type, *value, *traceback;

    if (!PyErr_ExceptionMatches(PyExc_ValueError) &&
        !PyErr_ExceptionMatches(PyExc_TypeError) &&
        !PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        return;
    }
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *judge = py_find_attribute("attnpy._checks", "unreadable");
    PyObject *error =
        judge == NULL ? NULL : PyObject_CallFunction(judge, "Os", object, name);
    if (error != NULL && error != Py_None) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    }
    if (PyErr_Occurred()) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    } else {
        PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(error);
    Py_XDECREF(judge);
}

/* NumPy's array for an object, which may be one that the object keeps. */
static PyArrayObject *
convert(PyObject *object, const char *name)
{
    PyObject *array = PyArray_FROM_O(object);
    PyArrayObject *view = array == NULL ? NULL : py_view_of(array);

    if (array == NULL) {
        explain(object, name);
    }
    Py_XDECREF(array);
    return view;
}

int
py_as_array(PyObject *object, const char *name, PyArrayObject **array)
{
    if (object == Py_None) {
        PyErr_Format(PyExc_TypeError, "%s: expected an array, got None", name);
        return -1;
    }
    if (!PyArray_CheckExact(object) &&
        check_mask(object, name, "filled() returns one") < 0) {
        return -1;
    }
    *array = PyArray_Check(object) ? py_view_of(object) : convert(object, name);
    return *array == NULL ? -1 : 0;
}

int
py_as_optional_array(PyObject *object, const char *name, PyArrayObject **array)
{
    return object == Py_None ? 0 : py_as_array(object, name, array);
}

int
py_copy_integers(PyObject *object, const char *name, PyArrayObject **array)
{
    bool is_unsigned;

    if (object == Py_None) {
        return 0;
    }
    if (PyLong_Check(object)) { /* may be beyond any dtype */
        int overflow;
        (void)PyLong_AsLongLongAndOverflow(object, &overflow);
        if (overflow != 0) {
            PyErr_Format(PyExc_ValueError, "%s: expected 64-bit integers, got %R", name,
                         object);
            return -1;
        }
    }
    if (py_as_array(object, name, array) < 0) {
        return -1;
    }
    bool nothing = PyArray_SIZE(*array) == 0 && !PyArray_Check(object);
    if (!PyTypeNum_ISINTEGER(PyArray_TYPE(*array)) && !nothing) {
        return py_fail_dtype(*array, name, "integers");
    }
    is_unsigned = PyTypeNum_ISUNSIGNED(PyArray_TYPE(*array));
    if (py_copy_as(array, NPY_INT64) < 0) {
        return -1;
    }
    const int64_t *numbers = PyArray_DATA(*array);
    for (npy_intp i = 0; is_unsigned && i < PyArray_SIZE(*array); i++) {
        if (numbers[i] < 0) {
            PyErr_Format(PyExc_ValueError, "%s: expected 64-bit integers, got %llu",
                         name, (unsigned long long)numbers[i]);
            return -1;
        }
    }
    return 0;
}

int
py_as_out(PyObject *object, PyArrayObject **out)
{
    if (object == Py_None) {
        return 0;
    }
    if (!PyArray_Check(object)) {
        PyErr_Format(PyExc_TypeError, "out: expected a NumPy array, got %s",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    if (!PyArray_CheckExact(object) && check_mask(object, "out", "data is one") < 0) {
        return -1;
    }
    *out = py_view_of(object);
    return *out == NULL ? -1 : 0;
}

static int
fail_out_shape(PyArrayObject *out, int n_axes, const npy_intp *shape)
{
    PyObject *expected = PyArray_IntTupleFromIntp(n_axes, shape);
    PyObject *got = py_shape_of(out);

    if (expected != NULL && got != NULL) {
        PyErr_Format(PyExc_ValueError, "out: expected shape %S, got %S", expected, got);
    }
    Py_XDECREF(expected);
    Py_XDECREF(got);
    return -1;
}

int
py_check_out(PyArrayObject *out, int type, int n_axes, const npy_intp *shape)
{
    if (PyArray_TYPE(out) != type) {
        PyArray_Descr *descr = PyArray_DescrFromType(type);
        PyErr_Format(PyExc_TypeError, "out: expected dtype %S, got dtype %S",
                     (PyObject *)descr, (PyObject *)PyArray_DESCR(out));
        Py_XDECREF(descr);
        return -1;
    }
    if (PyArray_NDIM(out) != n_axes ||
        !PyArray_CompareLists(PyArray_DIMS(out), shape, n_axes)) {
        return fail_out_shape(out, n_axes, shape);
    }
    if (!PyArray_ISWRITEABLE(out)) {
        PyErr_SetString(
            PyExc_ValueError,
            "out: expected an array that can be written to, got a read-only "
            "one");
        return -1;
    }
    return 0;
}

PyObject *
py_hand_out(PyArrayObject **array)
{
    PyObject *handed_out = (PyObject *)*array;

    *array = py_view_of(handed_out);
    if (*array == NULL) {
        Py_CLEAR(handed_out);
    }
    return handed_out;
}

bool
py_is_same_array(PyObject *object, PyArrayObject *array)
{
    PyArrayObject *other = (PyArrayObject *)object;
    int n = PyArray_NDIM(array);

    return PyArray_Check(object) && PyArray_DATA(other) == PyArray_DATA(array) &&
           PyArray_TYPE(other) == PyArray_TYPE(array) && PyArray_NDIM(other) == n &&
           PyArray_CompareLists(PyArray_DIMS(other), PyArray_DIMS(array), n) &&
           PyArray_CompareLists(PyArray_STRIDES(other), PyArray_STRIDES(array), n);
}

int
py_type_number(PyObject *object)
{
    return PyArray_Check(object) ? PyArray_TYPE((PyArrayObject *)object) : -1;
}

npy_intp
py_length_of(PyObject *object, int n_axes, int axis)
{
    return PyArray_Check(object) && PyArray_NDIM((PyArrayObject *)object) == n_axes
               ? PyArray_DIM((PyArrayObject *)object, axis)
               : -1;
}

bool
py_are_same_integers(PyObject *one, PyObject *other)
{
    PyArrayObject *a = (PyArrayObject *)one, *b = (PyArrayObject *)other;

    return PyArray_Check(one) && PyArray_Check(other) && PyArray_ISCARRAY_RO(a) &&
           PyArray_ISCARRAY_RO(b) && PyArray_TYPE(a) == NPY_INT64 &&
           PyArray_TYPE(b) == NPY_INT64 && PyArray_SAMESHAPE(a, b) &&
           (a == b ||
            memcmp(PyArray_DATA(a), PyArray_DATA(b), (size_t)PyArray_NBYTES(a)) == 0);
}

int
py_is_boolean(PyObject *object)
{
    PyObject *dtype, *text;
    const char *letters;

    if (PyArray_Check(object)) {
        return PyArray_ISBOOL((PyArrayObject *)object);
    }
    if (PyLong_Check(object) || PyArray_IsScalar(object, Generic)) {
        return PyBool_Check(object) || PyArray_IsScalar(object, Bool);
    }
    dtype = PyObject_GetAttrString(object, "dtype"); /* as torch.bool */
    text = dtype == NULL ? NULL : PyObject_Str(dtype);
    letters = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    int found = letters == NULL ? py_forget_error() : strstr(letters, "bool") != NULL;
    Py_XDECREF(text);
    Py_XDECREF(dtype);
    return found;
}
