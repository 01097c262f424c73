/* linear(). */
#include "python/linear.h"

#include "python/activate.h"
#include "python/arrays.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/settings.h"

void
py_release_linear(py_linear_arrays *a)
{
    Py_CLEAR(a->input);
    py_release_weight(&a->weight);
    Py_CLEAR(a->bias);
    Py_CLEAR(a->times);
    Py_CLEAR(a->residual);
}

/* The type of the product of x and the weight, which have these types. */
static int
common_type(const int types[2], py_precision precision)
{
    int type = precision == PY_PROMOTED ? py_common_type(2, types, "x, weight")
                                        : py_common_type(1, types + 1, "weight");

    return type >= 0 && precision == PY_WIDE ? py_real_type(type) : type;
}

/* Converts the arrays to dtypes of the core; returns the type number of the product, or
 * -1. */
static int
convert_linear(py_linear_arrays *a, py_precision precision, attn_linear_problem *l)
{
    const int types[2] = {PyArray_TYPE(a->input), py_weight_type(&a->weight)};
    int type;

    if (py_check_operand(a->input, "x") < 0 ||
        (a->weight.owner == NULL && /* else prepare() has checked it */
         py_check_operand(a->weight.array, "weight") < 0) ||
        (a->bias != NULL && py_check_operand(a->bias, "bias") < 0) ||
        (type = common_type(types, precision)) < 0) {
        return -1;
    }
    if (a->weight.is_quantized && py_real_type(type) != NPY_FLOAT) {
        return py_fail_dtype(a->input, "x",
                             "float32, float16 or bfloat16 for a quantised weight");
    }
    l->rounds_input = precision != PY_PROMOTED;
    if (!py_storage_of(type, &l->output.dtype)) {
        return py_fail_dtype(a->weight.array, "weight",
                             "a dtype that promotes to a floating one");
    }
    l->arithmetic = attn_storage_of(l->output.dtype)->arithmetic;
    l->bias.dtype = l->arithmetic;
    /* Rows, which may not be computed yet, are read in any dtype. */
    int rows = py_storage_of(PyArray_TYPE(a->input), &l->input.dtype)
                   ? PyArray_TYPE(a->input)
                   : type;
    if (py_cast_operand(&a->input, rows, &l->input.dtype) < 0 ||
        py_cast_weight(&a->weight, type, &l->weight.dtype) < 0 ||
        (a->bias != NULL && py_cast_array(&a->bias, py_real_type(type)) < 0)) {
        return -1;
    }
    return type;
}

/* Checks and describes an array of the output's shape, or none. */
static int
set_change(PyArrayObject **array, const char *name, int type, attn_array *to,
           const py_linear_arrays *a, const attn_linear_problem *l)
{
    int n_axes = PyArray_NDIM(a->input);

    to->data = NULL;
    if (*array == NULL) {
        return 0;
    }
    if (py_check_operand(*array, name) < 0 ||
        py_cast_operand(array, type, &to->dtype) < 0) {
        return -1;
    }
    if (PyArray_NDIM(*array) != n_axes || py_axis_length(*array, 0) != l->n_out ||
        !PyArray_CompareLists(PyArray_DIMS(*array), PyArray_DIMS(a->input),
                              n_axes - 1)) {
        return py_fail_shape(*array, name, "the shape of the product, %zd rows of %zd",
                             l->batch.n * l->n_rows, l->n_out);
    }
    if (n_axes > 3 && /* rows of more axes must lie in a line */
        py_make_contiguous(array, PyArray_TYPE(*array)) < 0) {
        return -1;
    }
    py_describe_rows(to, *array, l);
    return 0;
}

/* Counts the rows before the last axis: n_batch times n_rows. */
static int
count_rows(PyArrayObject *input, attn_linear_problem *l)
{
    ptrdiff_t n_batch = 1, rows;
    bool overflow = false;

    l->n_rows = py_axis_length(input, 1);
    for (int axis = 0; axis < PyArray_NDIM(input) - 2; axis++) {
        overflow |= __builtin_mul_overflow(n_batch, PyArray_DIM(input, axis), &n_batch);
    }
    overflow |= __builtin_mul_overflow(n_batch, l->n_rows, &rows);
    if (overflow || rows > PTRDIFF_MAX / 2 || l->n_in > ATTN_MAX_DIM ||
        l->n_out > ATTN_MAX_DIM) {
        return py_fail_shape(input, "x", "sizes whose product fits in 63 bits", 0, 0);
    }
    l->batch = (attn_batch){.n = n_batch, .n_axes = 1, .shape = {n_batch}};
    return 0;
}

/* Checks the shapes, and reads the sizes. */
static int
read_linear_sizes(py_linear_arrays *a, attn_linear_problem *l)
{
    if (!py_is_matrix(&a->weight)) {
        return py_fail_shape(a->weight.array, "weight", "(K, M)", 0, 0);
    }
    l->n_in = py_weight_rows(&a->weight);
    if (PyArray_NDIM(a->input) < 1 || py_axis_length(a->input, 0) != l->n_in) {
        return py_fail_shape(a->input, "x", "(..., %zd)", l->n_in, 0);
    }
    l->n_out = py_weight_columns(&a->weight);
    if (a->bias != NULL &&
        (PyArray_NDIM(a->bias) != 1 || PyArray_DIM(a->bias, 0) != l->n_out)) {
        return py_fail_shape(a->bias, "bias", "(%zd,) to match weight's M", l->n_out,
                             0);
    }
    if (PyArray_NDIM(a->input) > 3 && /* rows of more axes must lie in a line */
        py_make_contiguous(&a->input, PyArray_TYPE(a->input)) < 0) {
        return -1;
    }
    return count_rows(a->input, l);
}

void
py_describe_rows(attn_array *to, PyArrayObject *array, const attn_linear_problem *l)
{
    to->data = PyArray_BYTES(array);
    to->column_stride = py_axis_stride(array, 0);
    to->row_stride = py_axis_stride(array, 1);
    to->batch_stride[0] = py_axis_stride(array, 2);
    if (PyArray_NDIM(array) > 3) { /* contiguous: strides of axes of 1 say nothing */
        to->row_stride = py_axis_length(array, 0) * PyArray_ITEMSIZE(array);
        to->batch_stride[0] = l->n_rows * to->row_stride;
    }
}

int
py_set_linear(py_linear_arrays *a, py_precision precision, attn_linear_problem *l)
{
    int type = convert_linear(a, precision, l);

    if (type < 0 || read_linear_sizes(a, l) < 0 ||
        set_change(&a->times, "times", type, &l->times, a, l) < 0 ||
        set_change(&a->residual, "residual", type, &l->residual, a, l) < 0) {
        return -1;
    }
    py_describe_rows(&l->input, a->input, l);
    py_describe_weight(&a->weight, l);
    l->bias.data = NULL;
    if (a->bias != NULL) {
        py_describe_rows(&l->bias, a->bias, l);
    }
    return type;
}

PyArrayObject *
py_make_product(const py_linear_arrays *a, int type, attn_linear_problem *l)
{
    npy_intp shape[ATTN_MAX_AXES];
    int n_axes = PyArray_NDIM(a->input);
    PyArrayObject *product;

    memcpy(shape, PyArray_DIMS(a->input), (size_t)n_axes * sizeof *shape);
    shape[n_axes - 1] = l->n_out;
    product = py_new_array(n_axes, shape, type);
    if (product != NULL) {
        py_describe_rows(&l->output, product, l);
    }
    return product;
}

static int
compute_linear(attn_linear_problem *l, attn_call *call)
{
    py_lock lock;

    if (l->batch.n * l->n_rows == 0 || l->n_out == 0) {
        return 0;
    }
    py_give_up_lock(&lock, attn_linear_work(l), call);
    return py_take_lock_back(&lock, attn_linear(l, call), call);
}

PyDoc_STRVAR(
    linear_doc,
    "linear(x, weight, bias, activation, times, residual, precision, num_threads, "
    "tier=None, /)\n--\n\nactivation(x @ weight + bias) * times + residual. "
    "precision is 'promoted', or 'narrow' or 'wide' for the weight's dtype or "
    "what it is computed in; tier names the instruction set.");

static int
parse_precision(PyObject *object, py_precision *precision)
{
    static const char *const names[] = {"promoted", "narrow", "wide"};

    for (int i = 0; i < 3 && PyUnicode_Check(object); i++) {
        if (PyUnicode_CompareWithASCIIString(object, names[i]) == 0) {
            *precision = (py_precision)i;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "precision: expected 'promoted', 'narrow' or 'wide', got %R", object);
    return -1;
}

/* The arrays of a product, described, and the new array for its result. */
typedef struct {
    py_linear_arrays arrays;
    attn_linear_problem linear;
    PyArrayObject *product;
} opened_product;

static int
open_product(opened_product *p, const py_linear_objects *o, attn_activation activation,
             py_precision precision)
{
    py_linear_arrays *a = &p->arrays;
    int type;

    p->linear.activation = activation;
    if (py_as_array(o->x, "x", &a->input) < 0 ||
        py_as_weight(o->weight, "weight", &a->weight) < 0 ||
        py_as_optional_array(o->bias, "bias", &a->bias) < 0 ||
        py_as_optional_array(o->times, "times", &a->times) < 0 ||
        py_as_optional_array(o->residual, "residual", &a->residual) < 0) {
        return -1;
    }
    type = py_set_linear(a, precision, &p->linear);
    p->product = type < 0 ? NULL : py_make_product(a, type, &p->linear);
    return p->product == NULL ? -1 : 0;
}

/* The result, or NULL if the status is an error's. */
static PyArrayObject *
close_product(opened_product *p, int status)
{
    py_release_linear(&p->arrays);
    if (status < 0) {
        Py_CLEAR(p->product);
    }
    return p->product;
}

PyArrayObject *
py_multiply_to(const py_linear_objects *o, attn_activation activation,
               py_precision precision, attn_call *call)
{
    opened_product p = {.product = NULL};
    int status = open_product(&p, o, activation, precision);

    return close_product(&p, status < 0 ? status : compute_linear(&p.linear, call));
}

PyArrayObject *
py_multiply_twice(const py_linear_objects *o, attn_activation activation,
                  py_precision precision, py_linear_objects last,
                  py_precision last_precision, attn_call *call)
{
    opened_product p = {.product = NULL}, q = {.product = NULL};
    int status = open_product(&p, o, activation, precision);
    py_lock lock;

    if (status == 0) {
        last.x = (PyObject *)p.product;
        status = open_product(&q, &last, ATTN_IDENTITY, last_precision);
    }
    if (status == 0) {
        py_give_up_lock(
            &lock, attn_linear_work(&p.linear) + attn_linear_work(&q.linear), call);
        status = py_take_lock_back(&lock, attn_linear_pair(&p.linear, &q.linear, call),
                                   call);
    }
    PyArrayObject *result = close_product(&q, status);
    Py_XDECREF(close_product(&p, status));
    return result;
}

PyArrayObject *
py_multiply(const py_linear_objects *o, py_precision precision, attn_call *call)
{
    attn_activation activation;

    if (py_parse_activation(o->activation, o->times != Py_None, &activation) < 0) {
        return NULL;
    }
    return py_multiply_to(o, activation, precision, call);
}

static PyObject *
linear(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    attn_call call = {0};
    py_precision precision;

    (void)module;
    if (py_check_count(n_arguments, 8, 9) < 0 ||
        parse_precision(arguments[6], &precision) < 0 ||
        py_threads_or_default(arguments[7], &call.n_threads) < 0 ||
        py_parse_tier(n_arguments > 8 ? arguments[8] : Py_None, &call.tier) < 0) {
        return NULL;
    }
    const py_linear_objects objects = {arguments[0], arguments[1], arguments[2],
                                       arguments[3], arguments[4], arguments[5]};
    return (PyObject *)py_multiply(&objects, precision, &call);
}

PyMethodDef py_linear_methods[] = {
    {"linear", PY_FUNCTION(linear), METH_FASTCALL, linear_doc},
    {NULL, NULL, 0, NULL},
};
