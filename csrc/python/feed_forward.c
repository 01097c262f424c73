/* feed_forward(): what linear() and normalize() do one after the other, without Python in
 * between. After the products of a layer little of Python is left in the CPU's caches. */
#include "python/feed_forward.h"

#include "python/activate.h"
#include "python/arrays.h"
#include "python/linear.h"
#include "python/norm.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/options.h"
#include "python/settings.h"

/* How numbers are computed that a gate multiplies, whose activation this is. Those that are not
 * stored as they are must not be rounded to 16 bits. */
static py_precision
precision_of_times(PyObject *x, attn_activation activation, py_precision precision)
{
    attn_dtype dtype;
    bool half = py_storage_of(py_type_number(x), &dtype) && attn_is_half(dtype);

    return activation != ATTN_IDENTITY && (half || precision == PY_NARROW) ? PY_WIDE
                                                                           : precision;
}

/* The hidden numbers of tokens x with a gate. */
static PyArrayObject *
gated_numbers(PyObject *x, PyObject *const *network, attn_activation activation,
              py_precision precision, attn_call *call)
{
    attn_activation of_times = attn_activation_of_times(activation);
    py_linear_objects first = {x,       network[W_1], network[B_1],
                               Py_None, Py_None,      Py_None};
    PyArrayObject *hidden,
        *times = py_multiply_to(&first, of_times,
                                precision_of_times(x, of_times, precision), call);

    if (times == NULL) {
        return NULL;
    }
    py_linear_objects gate = {x,       network[W_GATE],   network[B_GATE],
                              Py_None, (PyObject *)times, Py_None};
    hidden = py_multiply_to(&gate, activation, precision, call);
    Py_DECREF(times);
    return hidden;
}

PyArrayObject *
py_feed_forward(PyObject *x, PyObject *network, PyObject *residual, bool mixed,
                attn_call *call)
{
    PyObject *const *n = py_items(network, "network", N_NETWORK);
    py_precision precision = mixed ? PY_NARROW : PY_PROMOTED;
    py_precision last_precision = mixed ? PY_WIDE : PY_PROMOTED;
    bool gated = n != NULL && n[W_GATE] != Py_None;
    attn_activation activation;

    if (n == NULL || py_parse_activation(n[ACTIVATION], gated, &activation) < 0) {
        return NULL;
    }
    py_linear_objects plain = {x, n[W_1], n[B_1], Py_None, Py_None, Py_None};
    py_linear_objects last = {NULL, n[W_2], n[B_2], Py_None, Py_None, residual};
    if (!gated) {
        return py_multiply_twice(&plain, activation, precision, last, last_precision,
                                 call);
    }
    last.x = (PyObject *)gated_numbers(x, n, activation, precision, call);
    if (last.x == NULL) {
        return NULL;
    }
    PyArrayObject *result = py_multiply_to(&last, ATTN_IDENTITY, last_precision, call);
    Py_DECREF(last.x);
    return result;
}

PyDoc_STRVAR(
    feed_forward_doc,
    "feed_forward(x, norm, network, residual, mixed, num_threads, /)\n--\n\n"
    "f(x @ W_1 + b_1) @ W_2 + b_2 + residual, or with a gate "
    "(f(x @ W_gate + b_gate) * (x @ W_1 + b_1)) @ W_2 + b_2 + residual; norm, an "
    "attnpy._options.Norm or None, is first applied to x. network is an "
    "attnpy._options.Network.");

static PyObject *
feed_forward(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    attn_call call = {0};
    PyArrayObject *result;
    int mixed;

    (void)module;
    if (py_check_count(n_arguments, 6, 6) < 0 ||
        (mixed = py_parse_flag(arguments[4], "mixed")) < 0 ||
        py_threads_or_default(arguments[5], &call.n_threads) < 0 ||
        py_parse_tier(Py_None, &call.tier) < 0) {
        return NULL;
    }
    PyObject *x = py_normalize(arguments[0], Py_None, arguments[1], &call);
    if (x == NULL) {
        return NULL;
    }
    result = py_feed_forward(x, arguments[2], arguments[3], mixed, &call);
    Py_DECREF(x);
    return (PyObject *)result;
}

PyMethodDef py_feed_forward_methods[] = {
    {"feed_forward", PY_FUNCTION(feed_forward), METH_FASTCALL, feed_forward_doc},
    {NULL, NULL, 0, NULL},
};
