/* experts(): which networks the router chooses for tokens, their products, and the sum of their
 * results, without Python in between. */
#include "python/experts.h"

#include "core/experts.h"
#include "python/activate.h"
#include "python/arrays.h"
#include "python/linear.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/options.h"
#include "python/read_layers.h"
#include "python/routing.h"
#include "python/settings.h"

#include <stddef.h>

/* Tokens of networks that are computed together: more need more memory. */
enum { MOST_ROWS = 2048 };

/* A network's products for some tokens. */
enum { FIRST, GATE, LAST, N_PRODUCTS };
typedef struct {
    py_linear_arrays arrays[N_PRODUCTS];
    PyArrayObject *results[N_PRODUCTS]; /* owned */
    bool gated;
    attn_linear_problem products[N_PRODUCTS];
} network;

typedef struct {
    PyObject *const *group; /* Experts */
    PyObject *const *kinds; /* ExpertKinds */
    attn_call *call;
    PyArrayObject *x; /* contiguous, owned */
    npy_intp n_columns;
    py_routes routes;
    PyArrayObject *total;
} mixture;

/* n rows of an array that is contiguous, from a row on. The array must live longer. */
static PyArrayObject *
rows_of(PyArrayObject *array, npy_intp first, npy_intp n)
{
    npy_intp size = PyArray_ITEMSIZE(array), n_columns = py_axis_length(array, 0);

    return py_new_strided(2, (npy_intp[]){n, n_columns}, PyArray_TYPE(array),
                          (npy_intp[]){n_columns * size, size},
                          PyArray_BYTES(array) + first * n_columns * size);
}

static void
release_network(network *n)
{
    for (int i = 0; i < N_PRODUCTS; i++) {
        py_release_linear(&n->arrays[i]);
        Py_CLEAR(n->results[i]);
    }
}

/* Sets one of a network's products; 0, or the result is of another type. */
static int
set_product(network *n, int i, PyArrayObject *input, PyObject *const *weight,
            attn_activation activation, py_precision precision)
{
    py_linear_arrays *a = &n->arrays[i];
    attn_linear_problem *l = &n->products[i];
    int type;

    Py_INCREF(input);
    a->input = input;
    l->activation = activation;
    if (i == GATE) {
        Py_INCREF(n->results[FIRST]);
        a->times = n->results[FIRST];
    }
    if (py_as_weight(weight[0], "weight", &a->weight) < 0 ||
        py_as_optional_array(weight[1], "bias", &a->bias) < 0 ||
        (type = py_set_linear(a, precision, l)) < 0) {
        return -1;
    }
    if (i == LAST && type != NPY_FLOAT) {
        return PY_UNKNOWN;
    }
    n->results[i] = py_make_product(a, type, l);
    return n->results[i] == NULL ? -1 : 0;
}

/* Are two matrices of one kind, so that products with them are split alike? */
static bool
are_alike(const attn_linear_problem *a, const attn_linear_problem *b)
{
    return a->packed == b->packed && a->weight.dtype == b->weight.dtype &&
           (a->quantized == NULL) == (b->quantized == NULL);
}

/* Sets the products of a network, a group, for rows of x. */
static int
set_products(const mixture *m, network *n, PyArrayObject *x, PyObject *const *of)
{
    attn_activation activation, first;
    int status;

    n->gated = of[W_GATE] != Py_None;
    if (py_parse_activation(of[ACTIVATION], n->gated, &activation) < 0) {
        return -1;
    }
    first = n->gated ? attn_activation_of_times(activation) : activation;
    status = set_product(n, FIRST, x, of + W_1, first,
                         n->gated && first != ATTN_IDENTITY ? PY_WIDE : PY_NARROW);
    if (status == 0 && n->gated) {
        status = set_product(n, GATE, x, of + W_GATE, activation, PY_NARROW);
        if (status == 0 && !are_alike(&n->products[FIRST], &n->products[GATE])) {
            status = PY_UNKNOWN;
        }
    }
    if (status == 0) {
        status = set_product(n, LAST, n->results[n->gated ? GATE : FIRST], of + W_2,
                             ATTN_IDENTITY, PY_WIDE);
    }
    return status == 0 && n->products[LAST].n_out != m->n_columns ? PY_UNKNOWN : status;
}

/* Sets a network for rows of x. */
static int
set_network(const mixture *m, network *n, PyArrayObject *x, PyObject *object)
{
    PyObject *group;
    int status;

    if ((PyObject *)Py_TYPE(object) != m->kinds[NETWORK_KIND]) {
        return PY_UNKNOWN;
    }
    status = py_read_network(object, m->kinds[NETWORK_GATED], &group);
    if (status <= 0) {
        return status < 0 ? -1 : PY_UNKNOWN;
    }
    status = set_products(m, n, x, &PyTuple_GET_ITEM(group, 0));
    Py_DECREF(group);
    return status;
}

static npy_intp
start_of(const mixture *m, npy_intp j)
{
    return j == 0 ? 0 : m->routes.ends[j - 1];
}

/* The rows of x that a network takes: these themselves if it takes all. */
static PyArrayObject *
gather(const mixture *m, npy_intp j)
{
    npy_intp first = start_of(m, j), n = m->routes.ends[j] - first;
    size_t size = (size_t)(m->n_columns * PyArray_ITEMSIZE(m->x));
    PyArrayObject *rows;

    if (n == m->routes.n_tokens) {
        return rows_of(m->x, 0, n);
    }
    rows = py_new_array(2, (npy_intp[]){n, m->n_columns}, PyArray_TYPE(m->x));
    for (npy_intp i = 0; i < n && rows != NULL; i++) {
        memcpy(PyArray_BYTES(rows) + (size_t)i * size,
               PyArray_BYTES(m->x) + (size_t)m->routes.tokens[first + i] * size, size);
    }
    return rows;
}

/* Computes n networks, whose tokens begin at a place, and adds their results. */
static int
compute(const mixture *m, network *networks, int n, npy_intp place)
{
    attn_linear_problem **problems =
        PyMem_New(attn_linear_problem *, (size_t)n * N_PRODUCTS);
    attn_linear_problem **first = problems, **gate = first + n, **last = gate + n;
    py_lock lock;

    if (problems == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < n; i++) {
        if (networks[i].gated != networks[0].gated) {
            PyMem_Free(problems);
            return PY_UNKNOWN;
        }
        first[i] = &networks[i].products[FIRST];
        gate[i] = &networks[i].products[GATE];
        last[i] = &networks[i].products[LAST];
    }
    attn_experts_problem e = {.n = n,
                              .first = first,
                              .gate = networks[0].gated ? gate : NULL,
                              .last = last,
                              .rows = m->routes.tokens + place,
                              .weights = m->routes.weights + place,
                              .total = PyArray_DATA(m->total),
                              .n_columns = m->n_columns};
    py_give_up_lock(&lock, attn_experts_work(&e), m->call);
    int status = py_take_lock_back(&lock, attn_experts(&e, m->call), m->call);
    PyMem_Free(problems);
    return status;
}

/* The network with a number, owned. */
static PyObject *
network_at(const mixture *m, npy_intp j)
{
    PyObject *list = m->group[NETWORKS];
    npy_intp n = m->routes.n_networks - (m->group[SHARED] != Py_None);

    if (j == n) {
        return Py_NewRef(m->group[SHARED]);
    }
    return PySequence_GetItem(list, j);
}

/* Sets networks from j on, and computes them: as many as MOST_ROWS tokens take, but one at least.
 * Moves j behind them. */
static int
run_some(const mixture *m, network *networks, npy_intp *j)
{
    npy_intp place = start_of(m, *j), n_rows;
    int n = 0, status = 0;

    for (; *j < m->routes.n_networks && status == 0; (*j)++) {
        n_rows = m->routes.ends[*j] - start_of(m, *j);
        if (n > 0 && m->routes.ends[*j] - place > MOST_ROWS) {
            break;
        }
        if (n_rows == 0) {
            continue;
        }
        PyArrayObject *rows = gather(m, *j);
        PyObject *object = rows == NULL ? NULL : network_at(m, *j);
        memset(&networks[n], 0, offsetof(network, products));
        status = object == NULL ? -1 : set_network(m, &networks[n], rows, object);
        Py_XDECREF(rows); /* which a product owns, too */
        Py_XDECREF(object);
        n++;
    }
    if (status == 0) {
        status = compute(m, networks, n, place);
    }
    while (n > 0) {
        release_network(&networks[--n]);
    }
    return status;
}

static int
run_networks(const mixture *m)
{
    npy_intp n = m->routes.ends[m->routes.n_networks - 1],
             j = 0; /* no more are set at a time */
    network *networks = PyMem_New(
        network, (size_t)(n < m->routes.n_networks ? n : m->routes.n_networks));
    int status = networks == NULL ? -1 : 0;

    if (networks == NULL) {
        PyErr_NoMemory();
    }
    while (status == 0 && j < m->routes.n_networks) {
        status = run_some(m, networks, &j);
    }
    PyMem_Free(networks);
    return status;
}

static int
run_mixture(mixture *m, PyObject *x)
{
    int status;

    m->kinds = py_items(m->group[OF_EXPERTS], "kinds", N_EXPERT_KINDS);
    if (m->kinds == NULL || py_as_array(x, "x", &m->x) < 0) {
        return -1;
    }
    if (!PyDict_Check(m->kinds[NETWORK_GATED])) {
        PyErr_SetString(PyExc_TypeError, "kinds: expected a dict of gates");
        return -1;
    }
    attn_dtype dtype;
    int type = PyArray_TYPE(m->x);
    if (!py_storage_of(type, &dtype) ||
        attn_storage_of(dtype)->arithmetic != ATTN_F32) {
        return PY_UNKNOWN;
    }
    if (py_make_contiguous(&m->x, type) < 0) {
        return -1;
    }
    if (PyArray_NDIM(m->x) == 0 || PyArray_SIZE(m->x) == 0) {
        return PY_UNKNOWN;
    }
    m->n_columns = py_axis_length(m->x, 0);
    PyArrayObject *rows = rows_of(m->x, 0, PyArray_SIZE(m->x) / m->n_columns);
    status = rows == NULL
                 ? -1
                 : py_route(rows, m->group, m->kinds[SOFTMAX], m->call, &m->routes);
    Py_XDECREF(rows);
    if (status == 0) {
        m->total = py_new_zeros(PyArray_NDIM(m->x), PyArray_DIMS(m->x), NPY_FLOAT);
        status = m->total == NULL ? -1 : run_networks(m);
    }
    return status;
}

PyObject *
py_experts(PyObject *x, PyObject *group, PyObject *residual, attn_call *call)
{
    mixture m = {.group = py_items(group, "experts", N_EXPERTS), .call = call};
    PyObject *result = NULL;
    int status = m.group == NULL ? -1 : run_mixture(&m, x);

    if (status == 0) {
        result = residual == Py_None
                     ? Py_NewRef((PyObject *)m.total)
                     : PyNumber_InPlaceAdd((PyObject *)m.total, residual);
    } else if (status == PY_UNKNOWN) {
        result = Py_NewRef(Py_None);
    }
    py_release_routes(&m.routes);
    Py_XDECREF(m.x);
    Py_XDECREF(m.total);
    return result;
}

PyDoc_STRVAR(
    experts_doc,
    "experts(x, experts, num_threads, /)\n--\n\nThe sum of the networks that "
    "tokens take, in float32. experts is an attnpy._options.Experts. None where "
    "an array or a network is not of a kind that this function knows.");

static PyObject *
experts(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    attn_call call = {0};

    (void)module;
    if (py_check_count(n_arguments, 3, 3) < 0 ||
        py_threads_or_default(arguments[2], &call.n_threads) < 0 ||
        py_parse_tier(Py_None, &call.tier) < 0) {
        return NULL;
    }
    return py_experts(arguments[0], arguments[1], Py_None, &call);
}

PyMethodDef py_experts_methods[] = {
    {"experts", PY_FUNCTION(experts), METH_FASTCALL, experts_doc},
    {NULL, NULL, 0, NULL},
};
