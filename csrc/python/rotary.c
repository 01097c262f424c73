/* rotate() and quantize_heads(). */
#include "python/rotary.h"

#include "python/arrays.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/settings.h"

void
py_read_heads(PyArrayObject *array, attn_rotary_problem *p)
{
    int n_axes = PyArray_NDIM(array);

    p->batch.n_axes = n_axes > 3 ? n_axes - 3 : 0;
    p->batch.n = 1;
    for (int axis = 0; axis < p->batch.n_axes; axis++) {
        p->batch.shape[axis] = PyArray_DIM(array, axis);
        p->batch.n *= p->batch.shape[axis];
    }
    p->n_heads = py_axis_length(array, 2);
    p->n_tokens = py_axis_length(array, 1);
    p->head_dim = py_axis_length(array, 0);
    p->norm = NULL;
    p->scale.data = NULL;
    p->cos_sin.data = NULL;
    p->rotary_dim = 0;
    p->mixed = false;
    p->past_lengths = p->lengths = p->starts = NULL;
    p->pages = NULL;
}

int
py_convert_cos_sin(PyArrayObject **cos_sin, int type)
{
    return py_check_operand(*cos_sin, "cos_sin") < 0
               ? -1
               : py_make_contiguous(cos_sin, py_real_type(type));
}

int
py_set_cos_sin(PyArrayObject *cos_sin, PyArrayObject *x, attn_rotary_problem *p)
{
    int n_axes = PyArray_NDIM(cos_sin);
    bool fits = n_axes > 0 && n_axes <= PyArray_NDIM(x);

    for (int place = 1; fits && place < n_axes; place++) {
        npy_intp length = py_axis_length(cos_sin, place);
        fits = length == 1 || length == py_axis_length(x, place);
    }
    p->rotary_dim = py_axis_length(cos_sin, 0);
    if (!fits || p->rotary_dim % 2 != 0 || p->rotary_dim > p->head_dim) {
        return py_fail_shape(cos_sin, "cos_sin",
                             "rows for those of x, even and of at most %zd",
                             p->head_dim, 0);
    }
    py_describe(&p->cos_sin, cos_sin, 0, p->batch.n_axes);
    return 0;
}

/* Describes the part of tokens to rotate; -1 if shapes do not fit. */
static int
set_rotation(PyArrayObject *x, PyArrayObject *cos_sin, PyArrayObject *result,
             attn_rotary_problem *p)
{
    attn_dtype dtype = py_dtype_of(PyArray_TYPE(x));

    py_read_heads(x, p);
    p->dtype = p->cache_dtype = p->input.dtype = p->output.dtype = dtype;
    py_describe(&p->input, x, 0, p->batch.n_axes);
    py_describe(&p->output, result, 0, p->batch.n_axes);
    return py_set_cos_sin(cos_sin, x, p);
}

/* An array for the rotated rows of x that overlaps no rows still to be read: `out`, or
 * a new one. */
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
    return py_new_array(n, PyArray_DIMS(x), PyArray_TYPE(x));
}

/* Writes the rotated rows of x, which is native and aligned, to `out`. */
static int
rotate_rows(PyArrayObject *x, PyArrayObject *cos_sin, PyArrayObject *out,
            attn_rotary_problem *p, int n_threads)
{
    PyArrayObject *result = rotation_result(x, out);
    attn_call call = {.tier = py_current_tier(), .n_threads = n_threads};
    int status = -1;
    py_lock lock;

    if (result != NULL && set_rotation(x, cos_sin, result, p) == 0) {
        py_give_up_lock(&lock, attn_rotary_work(p), &call);
        status = py_take_lock_back(&lock, attn_rotary(p, &call), &call);
    }
    if (status == 0 && result != out) {
        status = PyArray_CopyInto(out, result);
    }
    Py_XDECREF(result);
    return status;
}

/* Provides an array for the result: the given one, or a new one. */
static int
set_out(PyArrayObject **out, PyArrayObject *x, int type)
{
    if (*out != NULL) {
        return py_check_out(*out, type, PyArray_NDIM(x), PyArray_DIMS(x));
    }
    *out = py_new_array(PyArray_NDIM(x), PyArray_DIMS(x), type);
    return *out == NULL ? -1 : 0;
}

/* Converts the arrays, and rotates the rows. */
static int
rotate_arrays(PyArrayObject **x, PyArrayObject **cos_sin, PyArrayObject **out,
              attn_rotary_problem *p, int n_threads)
{
    const int own = PyArray_TYPE(*x);
    int type = py_check_operand(*x, "x") < 0 ? -1 : py_common_type(1, &own, "x");

    return type < 0 || py_cast_array(x, type) < 0 ||
                   py_convert_cos_sin(cos_sin, type) < 0 || set_out(out, *x, type) < 0
               ? -1
               : rotate_rows(*x, *cos_sin, *out, p, n_threads);
}

PyDoc_STRVAR(
    rotate_doc,
    "rotate(x, cos_sin, interleaved, out, num_threads, /)\n--\n\nWrite rows of x to "
    "out, or a new array, with their pairs turned; cos_sin has cosines, then sines, in "
    "one row.");

static PyObject *
rotate(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    attn_rotary_problem p;
    PyArrayObject *x = NULL, *cos_sin = NULL, *out = NULL;
    PyObject *result = NULL;
    int interleaved, n_threads;

    (void)module;
    if (py_check_count(n_arguments, 5, 5) < 0) {
        return NULL;
    }
    interleaved = py_parse_flag(arguments[2], "interleaved");
    if (interleaved < 0 || py_threads_or_default(arguments[4], &n_threads) < 0) {
        return NULL;
    }
    p.interleaved = interleaved;
    if (py_as_array(arguments[0], "x", &x) == 0 &&
        py_as_array(arguments[1], "cos_sin", &cos_sin) == 0 &&
        py_as_out(arguments[3], &out) == 0 &&
        rotate_arrays(&x, &cos_sin, &out, &p, n_threads) == 0) {
        result = Py_NewRef(arguments[3] == Py_None ? (PyObject *)out : arguments[3]);
    }
    Py_XDECREF(x);
    Py_XDECREF(cos_sin);
    Py_XDECREF(out);
    return result;
}

/* Writes rows of x, which are native and aligned, as a cache of int8 has them. */
static int
quantize_rows(PyArrayObject *x, PyArrayObject *out, PyArrayObject *scale, int n_threads)
{
    attn_rotary_problem p;
    attn_call call = {.tier = py_current_tier(), .n_threads = n_threads};
    py_lock lock;

    py_read_heads(x, &p);
    p.interleaved = false;
    p.mixed = true;
    p.dtype = p.input.dtype = py_dtype_of(PyArray_TYPE(x));
    p.cache_dtype = p.output.dtype = ATTN_I8;
    p.scale.dtype = ATTN_F32;
    py_describe(&p.input, x, 0, p.batch.n_axes);
    py_describe(&p.output, out, 0, p.batch.n_axes);
    py_describe(&p.scale, scale, 1, p.batch.n_axes);
    py_give_up_lock(&lock, attn_rotary_work(&p), &call);
    return py_take_lock_back(&lock, attn_rotary(&p, &call), &call);
}

/* Checks the arrays, and writes the rows. */
static int
quantize_arrays(PyArrayObject *x, PyArrayObject *out, PyArrayObject *scale,
                int n_threads)
{
    const int type = PyArray_TYPE(x), n_axes = PyArray_NDIM(x);

    if ((type != NPY_FLOAT && type != NPY_DOUBLE) || !PyArray_ISBEHAVED_RO(x)) {
        return py_fail_dtype(x, "x", "aligned float32 or float64 in native byte order");
    }
    if (n_axes == 0) {
        return py_fail_shape(x, "x", "(..., D)", 0, 0);
    }
    if (py_check_out(out, NPY_BYTE, n_axes, PyArray_DIMS(x)) < 0 ||
        py_check_out(scale, NPY_FLOAT, n_axes - 1, PyArray_DIMS(x)) < 0) {
        return -1;
    }
    if (!PyArray_ISBEHAVED(scale)) {
        return py_fail_dtype(scale, "scale", "aligned float32 in native byte order");
    }
    return quantize_rows(x, out, scale, n_threads);
}

PyDoc_STRVAR(quantize_heads_doc, "quantize_heads(x, out, scale, num_threads, "
                                 "/)\n--\n\nWrite rows of x, (..., D), to "
                                 "out and scale as caches of int8 have them.");

static PyObject *
quantize_heads(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    PyArrayObject *x = NULL, *out = NULL, *scale = NULL;
    int n_threads, status = -1;

    (void)module;
    if (py_check_count(n_arguments, 4, 4) < 0 ||
        py_threads_or_default(arguments[3], &n_threads) < 0) {
        return NULL;
    }
    if (py_as_array(arguments[0], "x", &x) == 0 &&
        py_as_array(arguments[1], "out", &out) == 0 &&
        py_as_array(arguments[2], "scale", &scale) == 0) {
        status = quantize_arrays(x, out, scale, n_threads);
    }
    Py_XDECREF(x);
    Py_XDECREF(out);
    Py_XDECREF(scale);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

PyMethodDef py_rotary_methods[] = {
    {"rotate", PY_FUNCTION(rotate), METH_FASTCALL, rotate_doc},
    {"quantize_heads", PY_FUNCTION(quantize_heads), METH_FASTCALL, quantize_heads_doc},
    {NULL, NULL, 0, NULL},
};
