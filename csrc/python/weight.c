/* The matrix of a linear product, packed or not. */
#include "python/weight.h"

#include "python/arrays.h"
#include "python/objects.h"

/* The parts of a PackedWeight, (panels, K, M), or NULL without an error. */
static PyObject *
packed_parts(PyObject *object)
{
    PyObject *parts = NULL;

    if (!PyArray_Check(object)) {
        parts = PyObject_GetAttrString(object, "_parts");
        if (parts == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();
        }
    }
    if (parts != NULL && !PyTuple_Check(parts)) {
        Py_CLEAR(parts);
    }
    return parts;
}

int
py_as_weight(PyObject *object, const char *name, py_weight *w)
{
    PyObject *parts = packed_parts(object), *panels;

    w->packed = parts != NULL;
    if (parts == NULL) {
        return PyErr_Occurred() ? -1 : py_as_array(object, name, &w->array);
    }
    if (PyArg_ParseTuple(parts, "O!nn", &PyArray_Type, &panels, &w->shape[0],
                         &w->shape[1])) {
        w->array = py_view_of(panels);
    }
    Py_DECREF(parts);
    return w->array == NULL ? -1 : 0;
}

bool
py_is_matrix(const py_weight *w)
{
    return w->packed || PyArray_NDIM(w->array) == 2;
}

npy_intp
py_weight_rows(const py_weight *w)
{
    if (w->packed) {
        return w->shape[0];
    }
    return PyArray_NDIM(w->array) == 0 ? 0 : PyArray_DIM(w->array, 0);
}

npy_intp
py_weight_columns(const py_weight *w)
{
    return w->packed ? w->shape[1] : py_axis_length(w->array, 0);
}

/* Are the panels as long as the core expects them to be? */
static bool
are_panels(const py_weight *w, attn_dtype dtype)
{
    npy_intp unit = ATTN_PANEL_COLUMNS, terms = attn_packed_terms(dtype), size;

    return w->shape[0] >= 0 && w->shape[0] <= ATTN_MAX_DIM && w->shape[1] >= 0 &&
           w->shape[1] <= ATTN_MAX_DIM &&
           !__builtin_mul_overflow((w->shape[0] + terms - 1) / terms * terms,
                                   (w->shape[1] + unit - 1) / unit * unit, &size) &&
           PyArray_ISCARRAY_RO(w->array) && PyArray_NDIM(w->array) == 1 &&
           PyArray_DIM(w->array, 0) == size;
}

int
py_cast_weight(py_weight *w, int type, attn_dtype *dtype)
{
    if (!w->packed) {
        return py_cast_operand(&w->array, type, dtype);
    }
    if (!py_storage_of(PyArray_TYPE(w->array), dtype) || !are_panels(w, *dtype)) {
        PyErr_SetString(PyExc_ValueError, "weight: expected panels as pack() makes");
        return -1;
    }
    if (attn_storage_of(*dtype)->arithmetic !=
        attn_storage_of(py_dtype_of(type))->arithmetic) {
        return py_fail_dtype(
            w->array, "weight",
            "float64 or an array, for packed ones cannot be converted");
    }
    return 0;
}

void
py_describe_weight(const py_weight *w, attn_linear_problem *l)
{
    attn_array *to = &l->weight;

    to->data = PyArray_BYTES(w->array);
    l->packed = w->packed;
    if (!w->packed) {
        to->column_stride = py_axis_stride(w->array, 0);
        to->row_stride = py_axis_stride(w->array, 1);
        return;
    }
    to->column_stride = attn_storage_of(to->dtype)->bytes;
    to->row_stride =
        ATTN_PANEL_COLUMNS * attn_packed_terms(to->dtype) * to->column_stride;
}
