/* rotate(), and what it has in common with a layer's heads. */
#include "binding.h"

void
py_read_heads(PyArrayObject *array, attn_heads_problem *p)
{
    int n_axes = PyArray_NDIM(array);

    p->n_batch_axes = n_axes > 3 ? n_axes - 3 : 0;
    p->n_batch = 1;
    for (int axis = 0; axis < p->n_batch_axes; axis++) {
        p->batch_shape[axis] = PyArray_DIM(array, axis);
        p->n_batch *= p->batch_shape[axis];
    }
    p->n_heads = py_axis_length(array, 2);
    p->n_rows = py_axis_length(array, 1);
    p->n_columns = py_axis_length(array, 0);
    p->norm = NULL;
    p->turns.data = NULL;
    p->first_row = p->end_row = NULL;
}

int
py_set_turns(PyArrayObject *turns, PyArrayObject *x, attn_heads_problem *p)
{
    int n_axes = PyArray_NDIM(turns);
    bool fits = n_axes > 0 && n_axes <= PyArray_NDIM(x);

    for (int place = 1; fits && place < n_axes; place++) {
        npy_intp length = py_axis_length(turns, place);
        fits = length == 1 || length == py_axis_length(x, place);
    }
    p->n_turned = py_axis_length(turns, 0);
    if (!fits || p->n_turned % 2 != 0 || p->n_turned > p->n_columns) {
        return py_fail_shape(turns, "turns",
                             "rows for those of x, even and of at most %zd",
                             p->n_columns, 0);
    }
    py_describe(&p->turns, turns, 0, p->n_batch_axes);
    return 0;
}

/* Describes what of rows is to be turned; -1 where shapes do not fit. */
static int
set_rotation(PyArrayObject *x, PyArrayObject *turns, PyArrayObject *out,
             attn_heads_problem *p)
{
    attn_dtype dtype;

    (void)py_storage_of(PyArray_TYPE(x), &dtype);
    p->dtype = p->kept = p->input.dtype = p->output.dtype = dtype;
    py_read_heads(x, p);
    py_describe(&p->input, x, 0, p->n_batch_axes);
    py_describe(&p->output, out, 0, p->n_batch_axes);
    return py_set_turns(turns, x, p);
}

/* Where rows of x can be turned without disturbing rows to come: `out`, or a new array. */
static PyArrayObject *
rotation_result(PyArrayObject *x, PyArrayObject *out)
{
    int n = PyArray_NDIM(x);
    bool same = PyArray_DATA(out) == PyArray_DATA(x) &&
                PyArray_CompareLists(PyArray_STRIDES(out), PyArray_STRIDES(x), n);

    if (PyArray_ISBEHAVED(out) && (same || !py_may_overlap(out, x))) {
        Py_INCREF(out);
        return out;
    }
    return (PyArrayObject *)PyArray_EMPTY(n, PyArray_DIMS(x), PyArray_TYPE(x), 0);
}

/* Turns the rows of x, which is native and aligned. */
static int
rotate_rows(PyArrayObject *x, PyArrayObject *turns, PyArrayObject *out,
            attn_heads_problem *p)
{
    PyArrayObject *result = rotation_result(x, out);
    const attn_tier *tier = py_current_tier();
    int status = -1;
    py_lock lock;

    if (result != NULL && set_rotation(x, turns, result, p) == 0) {
        attn_poll poll = py_give_up_lock(&lock, (double)PyArray_SIZE(x));
        status = attn_heads(p, tier, attn_get_num_threads(), poll, &lock);
        status = py_take_lock_back(&lock, status);
    }
    if (status == 0 && result != out) {
        status = PyArray_CopyInto(out, result);
    }
    Py_XDECREF(result);
    return status;
}

PyDoc_STRVAR(rotate_doc,
             "rotate(x, turns, interleaved, out, /)\n--\n\nWrite rows of x to out with "
             "their pairs turned; turns has cosines, then sines, in one row.");

static PyObject *
rotate(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    attn_heads_problem p;
    PyArrayObject *x = NULL, *turns = NULL, *out;
    int interleaved, status = -1;
    attn_dtype dtype;

    (void)module;
    if (n_arguments != 4 || !PyArray_Check(arguments[3])) {
        PyErr_SetString(PyExc_TypeError, "expected 4 arguments, the last one an array");
        return NULL;
    }
    out = (PyArrayObject *)arguments[3];
    interleaved = py_parse_flag(arguments[2], "interleaved");
    if (interleaved < 0 || py_as_array(arguments[0], &x) < 0) {
        return NULL;
    }
    p.interleaved = interleaved;
    int type = PyArray_TYPE(out);
    if (!py_storage_of(type, &dtype) || !PyArray_SAMESHAPE(x, out)) {
        py_fail_shape(out, "out", "a floating array of the shape of x", 0, 0);
    } else if (py_cast_array(&x, type) == 0 &&
               (turns = py_as_contiguous(
                    arguments[1], type == NPY_DOUBLE ? NPY_DOUBLE : NPY_FLOAT)) !=
                   NULL) {
        status = rotate_rows(x, turns, out, &p);
    }
    Py_XDECREF(x);
    Py_XDECREF(turns);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

PyMethodDef py_heads_methods[] = {
    {"rotate", PY_FUNCTION(rotate), METH_FASTCALL, rotate_doc},
    {NULL, NULL, 0, NULL},
};
