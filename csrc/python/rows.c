/* linear(), normalize() and activate(). */
#include "binding.h"

void
py_release_linear(py_linear_arrays *a)
{
    Py_CLEAR(a->input);
    Py_CLEAR(a->weight);
    Py_CLEAR(a->bias);
}

/* Brings the arrays to dtypes that the core takes; the type number of the product, or
 * -1. */
static int
convert_linear(py_linear_arrays *a, attn_linear_problem *l)
{
    const int types[2] = {PyArray_TYPE(a->input), PyArray_TYPE(a->weight)};
    int type;

    if (py_check_operand(a->input, "x") < 0 ||
        py_check_operand(a->weight, "weight") < 0 ||
        (a->bias != NULL && py_check_operand(a->bias, "bias") < 0) ||
        (type = py_common_type(2, types)) < 0) {
        return -1;
    }
    if (!py_storage_of(type, &l->output.dtype)) {
        return py_fail_dtype(a->weight, "weight",
                             "a dtype that promotes to a floating one");
    }
    l->arithmetic = type == NPY_DOUBLE ? ATTN_F64 : ATTN_F32;
    l->bias.dtype = l->arithmetic;
    /* Rows, which may be yet to be computed, are read in any dtype. */
    int rows = py_storage_of(PyArray_TYPE(a->input), &l->input.dtype)
                   ? PyArray_TYPE(a->input)
                   : type;
    if (py_cast_operand(&a->input, rows, &l->input.dtype) < 0 ||
        py_cast_operand(&a->weight, type, &l->weight.dtype) < 0 ||
        (a->bias != NULL &&
         py_cast_array(&a->bias, type == NPY_DOUBLE ? NPY_DOUBLE : NPY_FLOAT) < 0)) {
        return -1;
    }
    return type;
}

/* Checks the shapes, and reads the sizes. */
static int
read_linear_sizes(py_linear_arrays *a, attn_linear_problem *l)
{
    if (PyArray_NDIM(a->input) < 1) {
        return py_fail_shape(a->input, "x", "(..., K)", 0, 0);
    }
    l->n_in = py_axis_length(a->input, 0);
    if (PyArray_NDIM(a->weight) != 2 || PyArray_DIM(a->weight, 0) != l->n_in) {
        return py_fail_shape(a->weight, "weight", "(%zd, M) to match x's K", l->n_in,
                             0);
    }
    l->n_out = py_axis_length(a->weight, 0);
    if (a->bias != NULL &&
        (PyArray_NDIM(a->bias) != 1 || PyArray_DIM(a->bias, 0) != l->n_out)) {
        return py_fail_shape(a->bias, "bias", "(%zd,) to match weight's M", l->n_out,
                             0);
    }
    if (PyArray_NDIM(a->input) > 3) { /* rows of more axes must lie in a line */
        Py_SETREF(a->input, PyArray_GETCONTIGUOUS(a->input));
        if (a->input == NULL) {
            return -1;
        }
    }
    l->n_rows = py_axis_length(a->input, 1);
    l->n_batch = 1;
    for (int axis = 0; axis < PyArray_NDIM(a->input) - 2; axis++) {
        if (__builtin_mul_overflow(l->n_batch, PyArray_DIM(a->input, axis),
                                   &l->n_batch)) {
            return py_fail_shape(a->input, "x", "rows whose number fits in 63 bits", 0,
                                 0);
        }
    }
    ptrdiff_t rows;
    if (__builtin_mul_overflow(l->n_batch, l->n_rows, &rows) ||
        rows > PTRDIFF_MAX / 2 || l->n_in > ATTN_MAX_DIM || l->n_out > ATTN_MAX_DIM) {
        return py_fail_shape(a->input, "x", "sizes whose product fits in 63 bits", 0,
                             0);
    }
    return 0;
}

void
py_describe_rows(attn_array *to, PyArrayObject *array, const attn_linear_problem *l)
{
    to->data = PyArray_BYTES(array);
    to->column_stride = py_axis_stride(array, 0);
    to->row_stride = py_axis_stride(array, 1);
    to->batch_stride[0] =
        PyArray_NDIM(array) > 3
            ? l->n_rows * PyArray_STRIDE(array, PyArray_NDIM(array) - 2)
            : py_axis_stride(array, 2);
}

int
py_set_linear(py_linear_arrays *a, attn_linear_problem *l)
{
    int type = convert_linear(a, l);

    if (type < 0 || read_linear_sizes(a, l) < 0) {
        return -1;
    }
    py_describe_rows(&l->input, a->input, l);
    py_describe_rows(&l->weight, a->weight, l);
    l->bias.data = NULL;
    if (a->bias != NULL) {
        py_describe_rows(&l->bias, a->bias, l);
    }
    return type;
}

double
py_linear_work(const attn_linear_problem *l)
{
    return (double)l->n_batch * (double)l->n_rows * (double)l->n_in * (double)l->n_out;
}

PyArrayObject *
py_make_product(const py_linear_arrays *a, int type, attn_linear_problem *l)
{
    npy_intp shape[ATTN_MAX_AXES];
    int n_axes = PyArray_NDIM(a->input);
    PyArrayObject *product;

    memcpy(shape, PyArray_DIMS(a->input), (size_t)n_axes * sizeof *shape);
    shape[n_axes - 1] = l->n_out;
    product = (PyArrayObject *)PyArray_EMPTY(n_axes, shape, type, 0);
    if (product != NULL) {
        py_describe_rows(&l->output, product, l);
    }
    return product;
}

static int
compute_linear(const attn_linear_problem *l, const attn_tier *tier, int n_threads)
{
    py_lock lock;

    if (l->n_batch * l->n_rows == 0 || l->n_out == 0) {
        return 0;
    }
    attn_poll poll = py_give_up_lock(&lock, py_linear_work(l));
    return py_take_lock_back(&lock, attn_linear(l, tier, n_threads, poll, &lock));
}

static int
parse_activation(PyObject *object, attn_activation *activation)
{
    static const char *const names[] = {"relu", "gelu", "gelu_tanh", "silu"};

    *activation = ATTN_IDENTITY;
    if (object == Py_None) {
        return 0;
    }
    for (int i = 0; i < 4 && PyUnicode_Check(object); i++) {
        if (PyUnicode_CompareWithASCIIString(object, names[i]) == 0) {
            *activation = (attn_activation)(ATTN_RELU + i);
            return 0;
        }
    }
    PyErr_Format(
        PyExc_ValueError,
        "activation: expected 'relu', 'gelu', 'gelu_tanh', 'silu' or None, got "
        "%R",
        object);
    return -1;
}

/* The arrays of a normalization, owned; NULL where there is none. */
typedef struct {
    PyArrayObject *x, *residual, *weight, *bias, *output;
} norm_arrays;

static void
release_norm(norm_arrays *a)
{
    Py_CLEAR(a->x);
    Py_CLEAR(a->residual);
    Py_CLEAR(a->weight);
    Py_CLEAR(a->bias);
    Py_CLEAR(a->output);
}

/* The object as a contiguous array of x's type, or none for None. */
static int
as_optional_contiguous(PyObject *object, int type, PyArrayObject **array)
{
    if (object == Py_None) {
        return 0;
    }
    *array = py_as_contiguous(object, type);
    return *array == NULL ? -1 : 0;
}

/* Brings x, residual, weight and bias to contiguous arrays of x's dtype. */
static int
convert_norm(PyObject *const *arguments, norm_arrays *a)
{
    int type;

    if (py_as_array(arguments[0], &a->x) < 0) {
        return -1;
    }
    type = PyArray_TYPE(a->x);
    if (type != NPY_FLOAT && type != NPY_DOUBLE) {
        return py_fail_dtype(a->x, "x", "float32 or float64");
    }
    if (PyArray_NDIM(a->x) < 1) {
        return py_fail_shape(a->x, "x", "(..., dim)", 0, 0);
    }
    Py_SETREF(a->x, py_as_contiguous((PyObject *)a->x, type));
    if (a->x == NULL || as_optional_contiguous(arguments[1], type, &a->residual) < 0) {
        return -1;
    }
    a->weight = py_as_contiguous(arguments[2], type);
    return a->weight == NULL ? -1
                             : as_optional_contiguous(arguments[3], type, &a->bias);
}

static int
check_size(PyArrayObject *array, const char *name, npy_intp n)
{
    if (array == NULL || (PyArray_NDIM(array) == 1 && PyArray_DIM(array, 0) == n)) {
        return 0;
    }
    return py_fail_shape(array, name, "(%zd,)", n, 0);
}

/* Checks the shapes, makes the output, and describes them all. */
static int
set_norm_arrays(norm_arrays *a, attn_norm_problem *p)
{
    int type = PyArray_TYPE(a->x);

    p->n_columns = py_axis_length(a->x, 0);
    p->n_rows = p->n_columns == 0 ? 0 : PyArray_SIZE(a->x) / p->n_columns;
    if (check_size(a->weight, "weight", p->n_columns) < 0 ||
        check_size(a->bias, "bias", p->n_columns) < 0) {
        return -1;
    }
    if (a->residual != NULL && !PyArray_SAMESHAPE(a->x, a->residual)) {
        return py_fail_shape(a->residual, "residual", "the shape of x", 0, 0);
    }
    a->output =
        (PyArrayObject *)PyArray_EMPTY(PyArray_NDIM(a->x), PyArray_DIMS(a->x), type, 0);
    if (a->output == NULL) {
        return -1;
    }
    p->arithmetic = type == NPY_FLOAT ? ATTN_F32 : ATTN_F64;
    p->input = PyArray_DATA(a->x);
    p->residual = a->residual == NULL ? NULL : PyArray_DATA(a->residual);
    p->weight = PyArray_DATA(a->weight);
    p->bias = a->bias == NULL ? NULL : PyArray_DATA(a->bias);
    p->output = PyArray_DATA(a->output);
    return 0;
}

PyDoc_STRVAR(
    normalize_doc,
    "normalize(x, residual, weight, bias, eps, centre, num_threads, tier=None, /)"
    "\n--\n\nRows of x + residual, float32 or float64, with mean square 1, and mean "
    "0 if centred, times weight plus bias.");

static PyObject *
normalize(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    norm_arrays a = {NULL};
    attn_norm_problem p = {0};
    int n_threads = attn_get_num_threads(), centre;
    const attn_tier *tier;
    PyObject *result = NULL;
    py_lock lock;

    (void)module;
    if (py_check_count(n_arguments, 8) < 0 ||
        py_parse_number(arguments[4], "eps", &p.eps) < 0 ||
        (centre = py_parse_flag(arguments[5], "centre")) < 0 ||
        (arguments[6] != Py_None && py_parse_threads(arguments[6], &n_threads) < 0) ||
        py_parse_tier(n_arguments > 7 ? arguments[7] : Py_None, &tier) < 0) {
        return NULL;
    }
    p.centre = centre;
    if (convert_norm(arguments, &a) == 0 && set_norm_arrays(&a, &p) == 0) {
        attn_poll poll = py_give_up_lock(&lock, (double)PyArray_SIZE(a.x));
        attn_normalize(&p, tier, n_threads, poll, &lock);
        if (py_take_lock_back(&lock, 0) == 0) {
            result = Py_NewRef((PyObject *)a.output);
        }
    }
    release_norm(&a);
    return result;
}

PyDoc_STRVAR(activate_doc, "activate(x, activation, tier=None, /)\n--\n\nA copy of "
                           "float32 or float64 numbers with the activation applied.");

static PyObject *
activate(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    PyArrayObject *array, *copy;
    attn_activation activation;
    const attn_tier *tier;

    (void)module;
    if (py_check_count(n_arguments, 3) < 0 ||
        parse_activation(arguments[1], &activation) < 0 ||
        py_parse_tier(n_arguments > 2 ? arguments[2] : Py_None, &tier) < 0 ||
        py_as_array(arguments[0], &array) < 0) {
        return NULL;
    }
    int type = PyArray_TYPE(array);
    if (type != NPY_FLOAT && type != NPY_DOUBLE) {
        py_fail_dtype(array, "x", "float32 or float64");
        Py_DECREF(array);
        return NULL;
    }
    copy = (PyArrayObject *)PyArray_FROMANY((PyObject *)array, type, 0, 0,
                                            NPY_ARRAY_CARRAY | NPY_ARRAY_NOTSWAPPED |
                                                NPY_ARRAY_ENSURECOPY |
                                                NPY_ARRAY_ENSUREARRAY);
    Py_DECREF(array);
    if (copy != NULL && PyArray_SIZE(copy) > 0) {
        const attn_kernel *kernel = type == NPY_FLOAT ? tier->f32 : tier->f64;
        uint32_t control_word = attn_fp_control_reset();
        kernel->activate(PyArray_DATA(copy), PyArray_SIZE(copy), activation);
        attn_fp_control_restore(control_word);
    }
    return (PyObject *)copy;
}

PyDoc_STRVAR(linear_doc,
             "linear(x, weight, bias, activation, num_threads, tier=None, /)\n--\n\n"
             "activation(x @ weight + bias); tier names the instruction set.");

static PyObject *
linear(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    py_linear_arrays a = {NULL};
    attn_linear_problem l;
    const attn_tier *tier;
    int n_threads = attn_get_num_threads(), type = -1;
    PyArrayObject *product = NULL;

    (void)module;
    if (py_check_count(n_arguments, 6) < 0 ||
        parse_activation(arguments[3], &l.activation) < 0 ||
        (arguments[4] != Py_None && py_parse_threads(arguments[4], &n_threads) < 0) ||
        py_parse_tier(n_arguments > 5 ? arguments[5] : Py_None, &tier) < 0) {
        return NULL;
    }
    if (py_as_array(arguments[0], &a.input) == 0 &&
        py_as_array(arguments[1], &a.weight) == 0 &&
        py_as_optional_array(arguments[2], &a.bias) == 0) {
        type = py_set_linear(&a, &l);
    }
    product = type < 0 ? NULL : py_make_product(&a, type, &l);
    if (product != NULL && compute_linear(&l, tier, n_threads) < 0) {
        Py_CLEAR(product);
    }
    py_release_linear(&a);
    return (PyObject *)product;
}

PyMethodDef py_linear_methods[] = {
    {"linear", PY_FUNCTION(linear), METH_FASTCALL, linear_doc},
    {"normalize", PY_FUNCTION(normalize), METH_FASTCALL, normalize_doc},
    {"activate", PY_FUNCTION(activate), METH_FASTCALL, activate_doc},
    {NULL, NULL, 0, NULL},
};
