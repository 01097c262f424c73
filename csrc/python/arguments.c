/* Objects as numbers, dtypes and arrays: what all functions have in common. */
#include "binding.h"

PyObject *
py_shape_of(PyArrayObject *array)
{
    return PyArray_IntTupleFromIntp(PyArray_NDIM(array), PyArray_DIMS(array));
}

int
py_fail_shape(PyArrayObject *array, const char *name, const char *expected,
              Py_ssize_t m, Py_ssize_t n)
{
    PyObject *shape = py_shape_of(array);
    PyObject *text = shape == NULL ? NULL : PyUnicode_FromFormat(expected, m, n);

    if (text != NULL) {
        PyErr_Format(PyExc_ValueError, "%s: expected %U, got %S", name, text, shape);
    }
    Py_XDECREF(text);
    Py_XDECREF(shape);
    return -1;
}

int
py_fail_dtype(PyArrayObject *array, const char *name, const char *expected)
{
    PyErr_Format(PyExc_TypeError, "%s: expected %s, got dtype %S", name, expected,
                 (PyObject *)PyArray_DESCR(array));
    return -1;
}

int
py_as_array(PyObject *object, PyArrayObject **array)
{
    *array = (PyArrayObject *)PyArray_FROM_O(object);
    return *array == NULL ? -1 : 0;
}

int
py_as_optional_array(PyObject *object, PyArrayObject **array)
{
    return object == Py_None ? 0 : py_as_array(object, array);
}

int
py_cast_array(PyArrayObject **array, int type)
{
    PyArray_Descr *descr = PyArray_DescrFromType(type);
    PyArrayObject *cast;

    if (descr == NULL) {
        return -1;
    }
    cast = (PyArrayObject *)PyArray_FromArray(
        *array, descr, NPY_ARRAY_ALIGNED | NPY_ARRAY_NOTSWAPPED | NPY_ARRAY_FORCECAST);
    if (cast == NULL) {
        return -1;
    }
    Py_SETREF(*array, cast);
    return 0;
}

PyArrayObject *
py_as_contiguous(PyObject *object, int type)
{
    return (PyArrayObject *)PyArray_FROM_OTF(
        object, type, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_NOTSWAPPED | NPY_ARRAY_FORCECAST);
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

int
py_parse_number(PyObject *object, const char *name, double *number)
{
    double x = PyFloat_AsDouble(object);

    if (x == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "%s: expected a number, got %s", name,
                         Py_TYPE(object)->tp_name);
        } else if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Format(PyExc_ValueError, "%s: expected a finite number, got %R", name,
                         object);
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

int
py_parse_integer(PyObject *object, const char *name, int64_t *number, int *overflow)
{
    PyObject *index = PyBool_Check(object) ? NULL : PyNumber_Index(object);

    if (index == NULL) {
        if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "%s: expected an integer, got %s", name,
                         Py_TYPE(object)->tp_name);
        }
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
py_parse_tier(PyObject *object, const attn_tier **tier)
{
    const char *name;

    *tier = py_current_tier();
    if (object == Py_None) {
        return 0;
    }
    name = PyUnicode_AsUTF8(object);
    if (name == NULL) {
        return -1;
    }
    *tier = attn_tier_named(name);
    if (*tier == NULL) {
        PyErr_Format(PyExc_ValueError, "tier: expected one that this CPU has, got %R",
                     object);
        return -1;
    }
    return 0;
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

/* The type number of ml_dtypes.bfloat16, or -1 where that package is not loaded: then no
 * array can have it. */
static int
find_bfloat16(void)
{
    PyObject *modules = PyImport_GetModuleDict(); /* borrowed */
    PyObject *module = PyDict_GetItemString(modules, "ml_dtypes");
    PyObject *scalar;
    PyArray_Descr *descr = NULL;
    int type = -1;

    if (module == NULL) {
        return -1;
    }
    scalar = PyObject_GetAttrString(module, "bfloat16");
    if (scalar != NULL && PyArray_DescrConverter(scalar, &descr) == NPY_SUCCEED) {
        type = descr->type_num;
        Py_DECREF(descr);
    }
    Py_XDECREF(scalar);
    PyErr_Clear();
    return type;
}

bool
py_storage_of(int type, attn_dtype *dtype)
{
    switch (type) {
    case NPY_HALF: *dtype = ATTN_F16; return true;
    case NPY_FLOAT: *dtype = ATTN_F32; return true;
    case NPY_DOUBLE: *dtype = ATTN_F64; return true;
    default: break;
    }
    if (PyTypeNum_ISUSERDEF(type) && type == find_bfloat16()) {
        *dtype = ATTN_BF16;
        return true;
    }
    return false;
}

int
py_check_operand(PyArrayObject *array, const char *name)
{
    int type = PyArray_TYPE(array);
    attn_dtype unused;

    if (py_storage_of(type, &unused) || PyTypeNum_ISINTEGER(type) ||
        PyTypeNum_ISBOOL(type)) {
        return 0;
    }
    return py_fail_dtype(array, name,
                         "float64, float32, float16, bfloat16, integers or booleans");
}

int
py_copy_integers(PyObject *object, const char *name, PyArrayObject **array)
{
    PyArrayObject *copy;
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
    if (py_as_array(object, array) < 0) {
        return -1;
    }
    if (!PyTypeNum_ISINTEGER(PyArray_TYPE(*array))) {
        return py_fail_dtype(*array, name, "integers");
    }
    is_unsigned = PyTypeNum_ISUNSIGNED(PyArray_TYPE(*array));
    copy = (PyArrayObject *)PyArray_FROMANY((PyObject *)*array, NPY_INT64, 0, 0,
                                            NPY_ARRAY_CARRAY | NPY_ARRAY_NOTSWAPPED |
                                                NPY_ARRAY_FORCECAST |
                                                NPY_ARRAY_ENSURECOPY);
    if (copy == NULL) {
        return -1;
    }
    Py_SETREF(*array, copy);
    const int64_t *numbers = PyArray_DATA(copy);
    for (npy_intp i = 0; is_unsigned && i < PyArray_SIZE(copy); i++) {
        if (numbers[i] < 0) {
            PyErr_Format(PyExc_ValueError, "%s: expected 64-bit integers, got %llu",
                         name, (unsigned long long)numbers[i]);
            return -1;
        }
    }
    return 0;
}

npy_intp
py_axis_length(PyArrayObject *array, int from_right)
{
    int axis = PyArray_NDIM(array) - 1 - from_right;
    return axis < 0 ? 1 : PyArray_DIM(array, axis);
}

npy_intp
py_axis_stride(PyArrayObject *array, int from_right)
{
    int axis = PyArray_NDIM(array) - 1 - from_right;
    return axis < 0 || PyArray_DIM(array, axis) <= 1 ? 0 : PyArray_STRIDE(array, axis);
}

int
py_check_count(Py_ssize_t n_arguments, Py_ssize_t expected)
{
    if (n_arguments == expected || n_arguments == expected - 1) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", expected,
                 n_arguments);
    return -1;
}

int
py_common_type(int n, const int *types)
{
    PyArray_Descr *descrs[3], *common;
    int type = types[0];
    bool same = true;

    for (int i = 1; i < n; i++) {
        same = same && types[i] == type;
    }
    if (!same) {
        for (int i = 0; i < n; i++) {
            descrs[i] = PyArray_DescrFromType(types[i]);
        }
        common = PyArray_ResultType(0, NULL, n, descrs);
        for (int i = 0; i < n; i++) {
            Py_DECREF(descrs[i]);
        }
        if (common == NULL) {
            return -1;
        }
        type = common->type_num;
        Py_DECREF(common);
    }
    return PyTypeNum_ISINTEGER(type) || PyTypeNum_ISBOOL(type) ? NPY_DOUBLE : type;
}

int
py_cast_operand(PyArrayObject **array, int type, attn_dtype *dtype)
{
    int own = PyArray_TYPE(*array);

    if (type == NPY_DOUBLE || !py_storage_of(own, dtype)) {
        own = type;
    }
    (void)py_storage_of(own, dtype);
    return py_cast_array(array, own);
}
