/* products(): x[i] @ weights[i] for each i, each with the bits of linear(). */
#include "python/products.h"

#include "core/linear.h"
#include "python/arrays.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/settings.h"

/* The arrays of a call, owned. */
typedef struct {
    PyArrayObject *x, *weights, *output;
} products_call;

/* Checks the shapes, and reads the sizes; the number of products, or -1. */
static ptrdiff_t
read_sizes(const products_call *c, attn_linear_problem *l)
{
    if (PyArray_NDIM(c->weights) != 3) {
        return py_fail_shape(c->weights, "weights", "(B, K, M)", 0, 0);
    }
    ptrdiff_t n = PyArray_DIM(c->weights, 0);
    l->n_in = PyArray_DIM(c->weights, 1);
    l->n_out = PyArray_DIM(c->weights, 2);
    if (PyArray_NDIM(c->x) != 3 || PyArray_DIM(c->x, 2) != l->n_in ||
        (PyArray_DIM(c->x, 0) != n && PyArray_DIM(c->x, 0) != 1)) {
        return py_fail_shape(c->x, "x", "(%zd or 1, N, %zd)", n, l->n_in);
    }
    l->n_rows = PyArray_DIM(c->x, 1);
    l->batch = (attn_batch){.n = 1, .n_axes = 1, .shape = {1}};
    if (l->n_in > ATTN_MAX_DIM || l->n_out > ATTN_MAX_DIM ||
        l->n_rows > PTRDIFF_MAX / 2) {
        return py_fail_shape(c->x, "x", "sizes whose product fits in 63 bits", 0, 0);
    }
    return n;
}

/* Converts the arrays to what a product of their types reads; the output's type, or -1. */
static int
convert(products_call *c, attn_linear_problem *l)
{
    const int types[2] = {PyArray_TYPE(c->x), PyArray_TYPE(c->weights)};
    int type;

    if (py_check_operand(c->x, "x") < 0 ||
        py_check_operand(c->weights, "weights") < 0 ||
        (type = py_common_type(2, types, "x, weights")) < 0 ||
        py_cast_operand(&c->x, type, &l->input.dtype) < 0 ||
        py_cast_operand(&c->weights, type, &l->weight.dtype) < 0) {
        return -1;
    }
    l->output.dtype = py_dtype_of(type);
    l->arithmetic = attn_storage_of(l->output.dtype)->arithmetic;
    return type;
}

static void
describe(attn_array *to, PyArrayObject *array, ptrdiff_t *step)
{
    to->data = PyArray_BYTES(array);
    to->column_stride = py_axis_stride(array, 0);
    to->row_stride = py_axis_stride(array, 1);
    *step = py_axis_stride(array, 2);
}

static int
compute(products_call *c, attn_linear_problem *l, attn_call *call)
{
    ptrdiff_t n = read_sizes(c, l);
    int type = n < 0 ? -1 : convert(c, l);
    attn_linear_steps steps;
    py_lock lock;

    if (type < 0) {
        return -1;
    }
    c->output = py_new_array(3, (npy_intp[]){n, l->n_rows, l->n_out}, type);
    if (c->output == NULL) {
        return -1;
    }
    if (n == 0 || l->n_rows == 0 || l->n_out == 0) {
        return 0;
    }
    describe(&l->input, c->x, &steps.input);
    describe(&l->weight, c->weights, &steps.weight);
    describe(&l->output, c->output, &steps.output);
    py_give_up_lock(&lock, (double)n * attn_linear_work(l), call);
    return py_take_lock_back(&lock, attn_linear_each(n, l, &steps, call), call);
}

PyDoc_STRVAR(
    products_doc,
    "products(x, weights, num_threads, /)\n--\n\nx[i] @ weights[i] for each i, "
    "in their promoted dtype; x may have one matrix for all.");

static PyObject *
products(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    products_call c = {NULL};
    attn_linear_problem l = {.n_rows = 0};
    attn_call call = {NULL};

    (void)module;
    if (py_check_count(n_arguments, 3, 3) < 0 ||
        py_threads_or_default(arguments[2], &call.n_threads) < 0 ||
        py_parse_tier(Py_None, &call.tier) < 0) {
        return NULL;
    }
    if (py_as_array(arguments[0], "x", &c.x) < 0 ||
        py_as_array(arguments[1], "weights", &c.weights) < 0 ||
        compute(&c, &l, &call) < 0) {
        Py_CLEAR(c.output);
    }
    Py_XDECREF(c.x);
    Py_XDECREF(c.weights);
    return (PyObject *)c.output;
}

PyMethodDef py_products_methods[] = {
    {"products", PY_FUNCTION(products), METH_FASTCALL, products_doc},
    {NULL, NULL, 0, NULL},
};
