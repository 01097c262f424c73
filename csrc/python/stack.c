/* stack(): what layer(), feed_forward() and normalize() do one after the other in all layers of
 * a stack, without Python in between. The products of a layer drive Python out of the CPU's
 * caches, so that it would take several times as long there as before all layers. */
#include "python/stack.h"

#include "python/arrays.h"
#include "python/experts.h"
#include "python/feed_forward.h"
#include "python/layer.h"
#include "python/norm.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/options.h"
#include "python/settings.h"

/* What a layer's parts have in common. */
typedef struct {
    PyObject *const *layer; /* a group DecoderLayer */
    bool norm_first, parallel, mixed;
    attn_call *call;
} stack_layer;

/* A part of a layer: its result for given tokens, with a residual or None. Instead of results there
 * is None where dtypes are not those that the caller made tables and scales for, or where experts are of a kind
 * that only Python knows. */
typedef PyObject *(*run_part)(const stack_layer *, PyObject *given, PyObject *residual);

static PyObject *
attend(const stack_layer *s, PyObject *given, PyObject *residual)
{
    PyObject *const *groups = py_items(s->layer[ATTENTION], "attention", N_ATTENTION);
    PyObject *result =
        groups == NULL ? NULL
                       : py_layer(given, Py_None, groups, residual, &s->call->n_awake);

    if (result == NULL && !PyErr_Occurred()) { /* positions of another precision */
        return Py_NewRef(Py_None);
    }
    if (result != NULL && py_type_number(result) < 0) {
        Py_CLEAR(result);
        PyErr_SetString(PyExc_TypeError,
                        "options: expected no return_weights in a stack");
    }
    return result;
}

static PyObject *
feed(const stack_layer *s, PyObject *given, PyObject *residual)
{
    PyObject *network = s->layer[NETWORK];

    if (PyTuple_Check(network) && PyTuple_GET_SIZE(network) == N_EXPERTS) {
        return py_experts(given, network, residual, s->call);
    }
    return (PyObject *)py_feed_forward(given, network, residual, s->mixed, s->call);
}

/* Replaces an object by another one, or by NULL after an error. */
static void
replace(PyObject **object, PyObject *by)
{
    Py_SETREF(*object, by);
}

/* A result times an array of one number, or None if that is not of the result's dtype. */
static PyObject *
scaled(PyObject *result, PyObject *scale)
{
    PyArrayObject *number = NULL;
    PyObject *product = NULL;

    if (py_as_array(scale, "residual_scale", &number) < 0) {
        return NULL;
    }
    if (PyArray_NDIM(number) > 0) {
        (void)py_fail_shape(number, "residual_scale", "()", 0, 0);
    } else if (PyArray_TYPE(number) != py_type_number(result)) {
        product = Py_NewRef(Py_None);
    } else {
        product = PyNumber_Multiply(result, (PyObject *)number);
    }
    Py_DECREF(number);
    return product;
}

/* A part's result after what comes behind it: its norm and scale, the sum with x, and the norm
 * of that sum. Takes the result, which may be NULL. */
static PyObject *
add_result(const stack_layer *s, PyObject *result, PyObject *x, PyObject *norm,
           PyObject *after)
{
    PyObject *scale = s->layer[RESIDUAL_SCALE];

    if (result != NULL && result != Py_None) {
        replace(&result, py_normalize(result, Py_None, after, s->call));
    }
    if (result != NULL && result != Py_None && scale != Py_None) {
        replace(&result, scaled(result, scale));
    }
    if (result != NULL && result != Py_None) {
        replace(&result, s->norm_first || norm == Py_None
                             ? PyNumber_Add(x, result)
                             : py_normalize(result, x, norm, s->call));
    }
    return result;
}

/* x and what a part makes of it, as _stack.residual does. */
static PyObject *
run_residual(const stack_layer *s, run_part run, PyObject *x, PyObject *norm,
             PyObject *after)
{
    bool adds =
        s->norm_first && after == Py_None && s->layer[RESIDUAL_SCALE] == Py_None;
    PyObject *given = py_normalize(x, Py_None, s->norm_first ? norm : Py_None, s->call);
    PyObject *result = given == NULL ? NULL : run(s, given, adds ? x : Py_None);

    Py_XDECREF(given);
    return adds ? result : add_result(s, result, x, norm, after);
}

/* x and what both parts make of it; the network reads what attention does if it has no norm. */
static PyObject *
run_parallel(const stack_layer *s, PyObject *x)
{
    PyObject *own = s->layer[NORM_3], *result = NULL;
    PyObject *given = py_normalize(x, Py_None, s->layer[NORM_1], s->call);

    if (given != NULL) {
        result = attend(s, given, x);
    }
    if (result != NULL && result != Py_None && own != Py_None) {
        replace(&given, py_normalize(x, Py_None, own, s->call));
    }
    if (result != NULL && result != Py_None) {
        replace(&result, given == NULL ? NULL : feed(s, given, result));
    }
    Py_XDECREF(given);
    return result;
}

/* The result of a layer; None if a part's result has another dtype than its scale. */
static PyObject *
run_layer(PyObject *x, PyObject *group, bool mixed, attn_call *call)
{
    PyObject *const *l = py_items(group, "layer", N_DECODER_LAYER);
    stack_layer s = {.layer = l, .mixed = mixed, .call = call};
    int norm_first, parallel;

    if (l == NULL || (norm_first = py_parse_flag(l[NORM_FIRST], "norm_first")) < 0 ||
        (parallel = py_parse_flag(l[PARALLEL], "parallel")) < 0) {
        return NULL;
    }
    s.norm_first = norm_first;
    if (parallel) {
        return run_parallel(&s, x);
    }
    PyObject *attended = run_residual(&s, attend, x, l[NORM_1], l[AFTER_1]);
    if (attended == NULL || attended == Py_None) {
        return attended;
    }
    replace(&attended, run_residual(&s, feed, attended, l[NORM_3], l[AFTER_3]));
    return attended;
}

PyDoc_STRVAR(
    stack_doc,
    "stack(x, layers, norm, mixed, num_threads, /)\n--\n\nTokens x (B, L, E) after "
    "the layers of a stack and a norm, an attnpy._options.Norm or None; layers is a "
    "tuple of attnpy._options.DecoderLayer. None if a layer changes their dtype, or "
    "has "
    "experts that experts() does not know.");

static PyObject *
stack(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    enum { X, LAYERS, LAST_NORM, IS_MIXED, THREADS, N_ARGUMENTS };
    attn_call call = {0};
    PyObject *x, *layers;
    PyArrayObject *tokens;
    int mixed;

    (void)module;
    if (py_check_count(n_arguments, N_ARGUMENTS, N_ARGUMENTS) < 0 ||
        (mixed = py_parse_flag(arguments[IS_MIXED], "mixed")) < 0 ||
        py_threads_or_default(arguments[THREADS], &call.n_threads) < 0 ||
        py_parse_tier(Py_None, &call.tier) < 0) {
        return NULL;
    }
    layers = arguments[LAYERS];
    if (!PyTuple_Check(layers)) {
        PyErr_SetString(PyExc_TypeError, "layers: expected a tuple");
        return NULL;
    }
    if (py_as_array(arguments[X], "x", &tokens) < 0) {
        return NULL;
    }
    int type = PyArray_TYPE(tokens); /* for which a caller made tables and scales */
    x = (PyObject *)tokens;
    for (Py_ssize_t i = 0; x != NULL && i < PyTuple_GET_SIZE(layers); i++) {
        replace(&x, run_layer(x, PyTuple_GET_ITEM(layers, i), mixed, &call));
        if (x != NULL && py_type_number(x) != type) {
            replace(&x, Py_NewRef(Py_None));
            return x;
        }
    }
    if (x != NULL) {
        replace(&x, py_normalize(x, Py_None, arguments[LAST_NORM], &call));
    }
    return x;
}

PyMethodDef py_stack_methods[] = {
    {"stack", PY_FUNCTION(stack), METH_FASTCALL, stack_doc},
    {NULL, NULL, 0, NULL},
};
