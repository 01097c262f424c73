/* Objects as arrays. */
#include "python/arrays.h"

#include "core/cpu.h"
#include "core/half.h"
#include "python/memory.h"
#include "python/objects.h"

#include <stdatomic.h>

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
    PyObject *item = NULL;

    if (PyErr_Occurred()) { /* memory may have been short when the dtype was looked up */
        return -1;
    }
    if (PyArray_NDIM(array) == 0 &&
        (PyArray_ISSTRING(array) || PyArray_ISOBJECT(array))) {
        item = PyArray_GETITEM(array, PyArray_DATA(array));
        if (item == NULL) {
            return -1;
        }
    }
    if (item != NULL && !PyLong_Check(item)) { /* what was given was no array */
        PyErr_Format(PyExc_TypeError, "%s: expected %s, got %s", name, expected,
                     item == Py_None ? "None" : Py_TYPE(item)->tp_name);
    } else {
        PyErr_Format(PyExc_TypeError, "%s: expected %s, got dtype %S", name, expected,
                     (PyObject *)PyArray_DESCR(array));
    }
    Py_XDECREF(item);
    return -1;
}

/* Replaces the array by one of this type with these flags: the array itself if it fits. */
static int
convert(PyArrayObject **array, int type, int flags)
{
    PyArrayObject *made;
    uint32_t control_word = attn_fp_control_reset(); /* NumPy rounds as the CPU does */

    do {
        PyArray_Descr *descr = PyArray_DescrFromType(type);
        made = descr == NULL
                   ? NULL
                   : (PyArrayObject *)PyArray_FromArray(*array, descr,
                                                        flags | NPY_ARRAY_ALIGNED |
                                                            NPY_ARRAY_NOTSWAPPED |
                                                            NPY_ARRAY_FORCECAST);
    } while (made == NULL && py_try_again());
    attn_fp_control_restore(control_word);
    if (made == NULL) {
        return -1;
    }
    Py_SETREF(*array, made);
    return 0;
}

/* The type number of ml_dtypes.bfloat16, or -1 if that package is not loaded: then no
 * array can have it. Out of memory: -1 and an error. */
static int
find_bfloat16(void)
{
    PyObject *scalar = py_find_attribute("ml_dtypes", "bfloat16");
    PyArray_Descr *descr = NULL;
    int type = -1;

    if (scalar != NULL && PyArray_DescrConverter(scalar, &descr) == NPY_SUCCEED) {
        type = descr->type_num;
        Py_DECREF(descr);
    }
    Py_XDECREF(scalar);
    if (PyErr_Occurred()) {
        py_forget_error();
    }
    return type;
}

/* The same, looked up once: a type number never changes. */
static int
bfloat16_type(void)
{
    static atomic_int known = -1;
    int type = atomic_load_explicit(&known, memory_order_relaxed);

    if (type < 0) {
        type = find_bfloat16();
        atomic_store_explicit(&known, type, memory_order_relaxed);
    }
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
    if (PyTypeNum_ISUSERDEF(type) && type == bfloat16_type()) {
        *dtype = ATTN_BF16;
        return true;
    }
    return false;
}

attn_dtype
py_dtype_of(int type)
{
    attn_dtype dtype = ATTN_F64;

    (void)py_storage_of(type, &dtype);
    return dtype;
}

/* Replaces a contiguous array of bfloat16 by one of float. NumPy first looks for the functions of
 * a foreign dtype, which takes longer than converting a bias or a norm; a layer has ten. */
static int
widen(PyArrayObject **array)
{
    PyArrayObject *made =
        py_new_array(PyArray_NDIM(*array), PyArray_DIMS(*array), NPY_FLOAT);

    if (made == NULL) {
        return -1;
    }
    const uint16_t *from = PyArray_DATA(*array);
    float *to = PyArray_DATA(made);
    for (npy_intp i = 0; i < PyArray_SIZE(made); i++) {
        to[i] = attn_from_bf16(from[i]);
    }
    Py_SETREF(*array, made);
    return 0;
}

int
py_cast_array(PyArrayObject **array, int type)
{
    attn_dtype own;

    if (PyArray_TYPE(*array) == type && PyArray_ISBEHAVED_RO(*array)) {
        return 0;
    }
    if (type == NPY_FLOAT && PyArray_ISCARRAY_RO(*array) &&
        py_storage_of(PyArray_TYPE(*array), &own) && own == ATTN_BF16) {
        return widen(array);
    }
    return convert(array, type, 0);
}

int
py_make_contiguous(PyArrayObject **array, int type)
{
    if (!PyArray_ISCARRAY_RO(*array)) {
        return convert(array, type, NPY_ARRAY_C_CONTIGUOUS);
    }
    return py_cast_array(array, type);
}

int
py_copy_as(PyArrayObject **array, int type)
{
    return convert(array, type, NPY_ARRAY_CARRAY | NPY_ARRAY_ENSURECOPY);
}

int
py_real_type(int type)
{
    return type == NPY_DOUBLE ? NPY_DOUBLE : NPY_FLOAT;
}

int
py_gradient_type(PyArrayObject *array, int type)
{
    attn_dtype unused;
    return py_storage_of(PyArray_TYPE(array), &unused) ? PyArray_TYPE(array) : type;
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

/* Says which dtypes have no common one. */
static int
fail_common_type(int n, PyArray_Descr *const *descrs, const char *names)
{
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
        return -1;
    }
    PyErr_Clear();
    if (n == 2) {
        PyErr_Format(PyExc_TypeError,
                     "%s: expected dtypes with a common one, got %S and %S", names,
                     (PyObject *)descrs[0], (PyObject *)descrs[1]);
    } else {
        PyErr_Format(
            PyExc_TypeError, "%s: expected dtypes with a common one, got %S, %S and %S",
            names, (PyObject *)descrs[0], (PyObject *)descrs[1], (PyObject *)descrs[2]);
    }
    return -1;
}

/* The type number to which n type numbers promote. */
static int
promote(int n, const int *types, const char *names)
{
    PyArray_Descr *descrs[3], *common;
    int type;

    for (int i = 0; i < n; i++) {
        descrs[i] = PyArray_DescrFromType(types[i]);
    }
    common = PyArray_ResultType(0, NULL, n, descrs);
    type = common == NULL ? fail_common_type(n, descrs, names) : common->type_num;
    Py_XDECREF(common);
    for (int i = 0; i < n; i++) {
        Py_DECREF(descrs[i]);
    }
    return type;
}

int
py_common_type(int n, const int *types, const char *names)
{
    int type = types[0];
    bool same = true;

    for (int i = 1; i < n; i++) {
        same = same && types[i] == type;
    }
    if (!same) {
        type = promote(n, types, names);
    }
    if (type < 0) {
        return -1;
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

void
py_describe(attn_array *to, PyArrayObject *array, int missing, int n_batch_axes)
{
    ptrdiff_t *strides[3] = {&to->column_stride, &to->row_stride, &to->head_stride};

    to->data = PyArray_BYTES(array);
    for (int place = 0; place < 3; place++) {
        *strides[place] = place < missing ? 0 : py_axis_stride(array, place - missing);
    }
    for (int axis = 0; axis < n_batch_axes; axis++) {
        int from_right = n_batch_axes - 1 - axis + 3 - missing;
        to->batch_stride[axis] = py_axis_stride(array, from_right);
    }
}

/* The range of addresses of an array's elements: first up to but not last. */
static void
extent(PyArrayObject *array, uintptr_t *first, uintptr_t *last)
{
    *first = *last = (uintptr_t)PyArray_DATA(array);
    if (PyArray_SIZE(array) == 0) {
        return;
    }
    for (int axis = 0; axis < PyArray_NDIM(array); axis++) {
        npy_intp span = (PyArray_DIM(array, axis) - 1) * PyArray_STRIDE(array, axis);
        *(span < 0 ? first : last) += (uintptr_t)span;
    }
    *last += (uintptr_t)PyArray_ITEMSIZE(array);
}

bool
py_may_overlap(PyArrayObject *one, PyArrayObject *other)
{
    uintptr_t first, last, other_first, other_last;

    if (other == NULL) {
        return false;
    }
    extent(one, &first, &last);
    extent(other, &other_first, &other_last);
    return first < other_last && other_first < last;
}
