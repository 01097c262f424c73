/* experts(): which networks the router chooses for tokens, their products, and the sum of their
 * results, without Python in between. */
#include "python/experts.h"

#include "core/experts.h"
#include "python/activate.h"
#include "python/arrays.h"
#include "python/attention.h"
#include "python/linear.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/options.h"
#include "python/settings.h"

#include <math.h>
#include <stddef.h>

/* Tokens of networks that are computed together: more need more memory. */
enum { MOST_ROWS = 2048 };

/* What functions return besides 0 and -1: an array or a network is not of the kind that this file
 * knows. Python's own steps, which have the same bits, take all that a call may be given. */
enum { UNKNOWN = 1 };

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
    npy_intp n_tokens, n_columns;
    npy_intp n_networks; /* the last one is shared by all tokens, if there is one */
    npy_intp n_chosen;   /* for a token, without that */
    npy_intp *ends;      /* (n_networks,) of each one's tokens */
    int64_t *tokens;     /* network after network */
    float *weights;      /* of their results */
    PyArrayObject *total;
} mixture;

/* ---- Routing -------------------------------------------------------------------------- */

/* n rows of an array that is contiguous, from a row on. The array must live longer. */
static PyArrayObject *
rows_of(PyArrayObject *array, npy_intp first, npy_intp n)
{
    npy_intp size = PyArray_ITEMSIZE(array), n_columns = py_axis_length(array, 0);

    return py_new_strided(2, (npy_intp[]){n, n_columns}, PyArray_TYPE(array),
                          (npy_intp[]){n_columns * size, size},
                          PyArray_BYTES(array) + first * n_columns * size);
}

/* The softmax of scores (T, N), as attnpy._softmax has it: the weights of attention whose
 * queries and keys are empty. */
static PyArrayObject *
softmax(const mixture *m, PyArrayObject *scores)
{
    py_attention_arrays a = {0};
    attn_problem p;
    py_options o;
    PyArrayObject *found = NULL;
    npy_intp n = PyArray_DIM(scores, 0), n_keys = PyArray_DIM(scores, 1);
    PyArrayObject *query = py_new_array(2, (npy_intp[]){n, 0}, NPY_FLOAT);
    PyArrayObject *keys = py_new_array(2, (npy_intp[]){n_keys, 0}, NPY_FLOAT);
    PyObject *const inputs[] = {(PyObject *)query, (PyObject *)keys, (PyObject *)keys};
    int rank = -1;

    if (query != NULL && keys != NULL &&
        py_convert_inputs(inputs, m->kinds[SOFTMAX], &a, &p, &o) == 0) {
        o.n_threads = m->call->n_threads;
        o.return_weights = o.return_lse = true;
        Py_INCREF(scores);
        Py_XSETREF(a.bias, scores);
        rank = py_set_attention(&a, NPY_FLOAT, &o, &p);
    }
    if (rank >= 0 && py_make_results(&a, &o, NPY_FLOAT, rank, &p) == 0 &&
        py_compute(&a, &p, &o) == 0) {
        if (!PyArray_SAMESHAPE(a.weights, scores) || PyArray_SIZE(a.lse) != n) {
            PyErr_SetString(PyExc_ValueError, "softmax: expected options for a matrix");
        } else {
            found = a.weights;
            a.weights = NULL;
        }
    }
    for (npy_intp t = 0; found != NULL && t < n; t++) {
        float *row = (float *)PyArray_DATA(found) + t * n_keys;
        bool is_number = ((const float *)PyArray_DATA(a.lse))[t] > -INFINITY;
        for (npy_intp j = 0; j < n_keys && !is_number; j++) {
            row[j] = NAN;
        }
    }
    Py_XDECREF(query);
    Py_XDECREF(keys);
    py_release_attention(&a);
    return found;
}

/* Sets products (T, N) of the tokens that are not rounded to 16 bits. */
static int
multiply(const mixture *m, PyArrayObject *x, PyObject *weight, PyObject *bias,
         PyArrayObject **scores)
{
    PyArrayObject *matrix = NULL, *found = NULL;
    attn_dtype dtype;

    *scores = NULL;
    if (!py_storage_of(py_type_number(weight), &dtype) ||
        attn_storage_of(dtype)->arithmetic != ATTN_F32) {
        return UNKNOWN;
    }
    if (py_as_array(weight, "router", &matrix) < 0) {
        return -1;
    }
    bool known = PyArray_NDIM(matrix) == 2 && PyArray_DIM(matrix, 0) == m->n_columns;
    if (known) {
        py_linear_objects objects = {
            (PyObject *)x, (PyObject *)matrix, bias, Py_None, Py_None, Py_None};
        found =
            py_multiply(&objects, attn_is_half(dtype) ? PY_WIDE : PY_PROMOTED, m->call);
    }
    Py_DECREF(matrix);
    if (found == NULL || PyArray_TYPE(found) != NPY_FLOAT) {
        known = known && found == NULL;
        Py_XDECREF(found);
        return known ? -1 : UNKNOWN;
    }
    *scores = found;
    return 0;
}

/* Does one probability come before another one that has a lower number? NaN is last. */
static bool
precedes(float a, float b)
{
    return a > b || (a == a && b != b);
}

/* The k largest of n probabilities, of equal ones the first, from the largest on; and their
 * weights. */
static void
choose(const mixture *m, const float *p, npy_intp n, npy_intp *chosen, float *weights,
       bool renormalizes)
{
    npy_intp k = m->n_chosen, n_found = 0;
    float sum = 0;

    for (npy_intp j = 0; j < n; j++) {
        npy_intp at = n_found;
        while (at > 0 && precedes(p[j], p[chosen[at - 1]])) {
            at--;
        }
        n_found += n_found < k;
        for (npy_intp i = n_found - 1; i > at; i--) {
            chosen[i] = chosen[i - 1];
        }
        if (at < k) {
            chosen[at] = j;
        }
    }
    for (npy_intp i = 0; i < k; i++) {
        weights[i] = p[chosen[i]];
        sum = i == 0 ? weights[i] : sum + weights[i];
    }
    for (npy_intp i = 0; i < k && renormalizes; i++) {
        weights[i] /= sum;
    }
}

/* Brings the tokens into the order of their networks: chosen (T, k), with weights. */
static void
group_tokens(mixture *m, const npy_intp *chosen, const float *weights)
{
    npy_intp n = m->n_tokens * m->n_chosen, start = 0;

    memset(m->ends, 0, (size_t)m->n_networks * sizeof *m->ends);
    for (npy_intp i = 0; i < n; i++) {
        m->ends[chosen[i]]++;
    }
    for (npy_intp j = 0; j < m->n_networks; j++) { /* first they are starts */
        npy_intp count = m->ends[j];
        m->ends[j] = start;
        start += count;
    }
    for (npy_intp i = 0; i < n; i++) {
        npy_intp at = m->ends[chosen[i]]++;
        m->tokens[at] = i / m->n_chosen;
        m->weights[at] = weights[i];
    }
}

/* Adds the network that all tokens take, with its shares (T, 2). */
static void
share_network(mixture *m, const float *shares)
{
    npy_intp first = m->n_tokens * m->n_chosen;

    for (npy_intp t = 0; t < m->n_tokens; t++) {
        m->tokens[first + t] = t;
        m->weights[first + t] = shares[2 * t];
    }
    m->ends[m->n_networks - 1] = first + m->n_tokens;
}

/* The shares (T, 2) of the network for all tokens and of none: the logistic function is the
 * softmax of a number and 0. */
static int
set_shares(const mixture *m, PyArrayObject *x, PyArrayObject **shares)
{
    PyArrayObject *scores, *both = NULL;
    int status = multiply(m, x, m->group[SHARED_GATE], Py_None, &scores);

    if (status == 0 && PyArray_DIM(scores, 1) != 1) {
        status = UNKNOWN;
    }
    if (status == 0) {
        both = py_new_zeros(2, (npy_intp[]){m->n_tokens, 2}, NPY_FLOAT);
        status = both == NULL ? -1 : 0;
    }
    for (npy_intp t = 0; t < m->n_tokens && status == 0; t++) {
        ((float *)PyArray_DATA(both))[2 * t] = ((const float *)PyArray_DATA(scores))[t];
    }
    if (status == 0) {
        *shares = softmax(m, both);
        status = *shares == NULL ? -1 : 0;
    }
    Py_XDECREF(scores);
    Py_XDECREF(both);
    return status;
}

/* Chooses the networks of all tokens. */
static int
route_with(mixture *m, PyArrayObject *scores, PyArrayObject *shares)
{
    npy_intp k = m->n_chosen, n = m->n_tokens * k, n_scores = PyArray_DIM(scores, 1);
    int renormalizes = py_parse_flag(m->group[RENORMALIZE], "renormalize");
    PyArrayObject *p = renormalizes < 0 ? NULL : softmax(m, scores);
    npy_intp *chosen = PyMem_New(npy_intp, (size_t)n);
    float *weights = PyMem_New(float, (size_t)n);

    if (p != NULL && chosen != NULL && weights != NULL) {
        for (npy_intp t = 0; t < m->n_tokens; t++) {
            choose(m, (const float *)PyArray_DATA(p) + t * n_scores, n_scores,
                   chosen + t * k, weights + t * k, renormalizes);
        }
        group_tokens(m, chosen, weights);
        if (shares != NULL) {
            share_network(m, PyArray_DATA(shares));
        }
    } else if (p != NULL) {
        PyErr_NoMemory();
    }
    bool failed = PyErr_Occurred() != NULL;
    PyMem_Free(chosen);
    PyMem_Free(weights);
    Py_XDECREF(p);
    return failed ? -1 : 0;
}

/* Converts the tokens, and chooses their networks. */
static int
route(mixture *m, PyArrayObject *x)
{
    PyArrayObject *scores, *shares = NULL;
    bool shared = m->group[SHARED] != Py_None;
    int status = multiply(m, x, m->group[ROUTER], m->group[ROUTER_BIAS], &scores),
        overflow;
    int64_t k;

    if (status == 0 &&
        (!PyList_Check(m->group[NETWORKS]) ||
         PyList_GET_SIZE(m->group[NETWORKS]) != PyArray_DIM(scores, 1))) {
        status = UNKNOWN;
    }
    if (status == 0) {
        status = py_parse_integer(m->group[PER_TOKEN], "num_experts_per_token", &k,
                                  &overflow) < 0
                     ? -1
                 : overflow != 0 || k < 1 || k > PyArray_DIM(scores, 1) ? UNKNOWN
                                                                        : 0;
    }
    if (status == 0) {
        m->n_chosen = (npy_intp)k;
        m->n_networks = PyArray_DIM(scores, 1) + shared;
        npy_intp n = m->n_tokens * (m->n_chosen + shared);
        m->ends = PyMem_New(npy_intp, (size_t)m->n_networks);
        m->tokens = PyMem_New(int64_t, (size_t)n);
        m->weights = PyMem_New(float, (size_t)n);
        if (m->ends == NULL || m->tokens == NULL || m->weights == NULL) {
            PyErr_NoMemory();
            status = -1;
        } else if (shared) {
            status = set_shares(m, x, &shares);
        }
    }
    if (status == 0) {
        status = route_with(m, scores, shares);
    }
    Py_XDECREF(scores);
    Py_XDECREF(shares);
    return status;
}

/* ---- Networks ------------------------------------------------------------------------- */

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
            attn_activation activation)
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
        (type = py_set_linear(a, i == LAST ? PY_WIDE : PY_NARROW, l)) < 0) {
        return -1;
    }
    if (i == LAST && type != NPY_FLOAT) {
        return UNKNOWN;
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

/* A network's group, with the function of its gate if it has one. 1, or 0 if the network is not of
 * the kind, or its activation not among those that are gated, or -1. */
static int
read_network(PyObject *object, PyObject *kind, PyObject *gated, PyObject **group)
{
    static const char *const names[N_NETWORK] = {"W_1", "b_1", "W_gate",    "b_gate",
                                                 "W_2", "b_2", "activation"};
    PyObject *of;
    int status = 1;

    if ((PyObject *)Py_TYPE(object) != kind) {
        return 0;
    }
    of = PyTuple_New(N_NETWORK);
    for (int i = 0; i < N_NETWORK && of != NULL; i++) {
        PyObject *item = PyObject_GetAttrString(object, names[i]);
        if (item == NULL) {
            Py_CLEAR(of);
        } else {
            PyTuple_SET_ITEM(of, i, item);
        }
    }
    if (of == NULL) {
        return -1;
    }
    if (PyTuple_GET_ITEM(of, W_GATE) != Py_None) {
        PyObject *name = PyTuple_GET_ITEM(of, ACTIVATION);
        PyObject *function = PyDict_GetItemWithError(gated, name);
        status = function != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
        if (status > 0) {
            PyTuple_SET_ITEM(of, ACTIVATION, Py_NewRef(function));
            Py_DECREF(name);
        }
    }
    if (status <= 0) {
        Py_DECREF(of);
        return status;
    }
    *group = of;
    return 1;
}

/* Sets the products of a network, a group, for rows of x. */
static int
set_products(const mixture *m, network *n, PyArrayObject *x, PyObject *const *of)
{
    attn_activation activation, first;
    int status;

    n->gated = of[W_GATE] != Py_None;
    if (py_parse_activation(of[ACTIVATION], &activation) < 0) {
        return -1;
    }
    first = n->gated ? ATTN_IDENTITY : activation;
    status = set_product(n, FIRST, x, of + W_1, first);
    if (status == 0 && n->gated) {
        status = set_product(n, GATE, x, of + W_GATE, activation);
        if (status == 0 && !are_alike(&n->products[FIRST], &n->products[GATE])) {
            status = UNKNOWN;
        }
    }
    if (status == 0) {
        status = set_product(n, LAST, n->results[n->gated ? GATE : FIRST], of + W_2,
                             ATTN_IDENTITY);
    }
    return status == 0 && n->products[LAST].n_out != m->n_columns ? UNKNOWN : status;
}

/* Sets a network for rows of x. */
static int
set_network(const mixture *m, network *n, PyArrayObject *x, PyObject *object)
{
    PyObject *group;
    int status =
        read_network(object, m->kinds[NETWORK_KIND], m->kinds[NETWORK_GATED], &group);

    if (status <= 0) {
        return status < 0 ? -1 : UNKNOWN;
    }
    status = set_products(m, n, x, &PyTuple_GET_ITEM(group, 0));
    Py_DECREF(group);
    return status;
}

static npy_intp
start_of(const mixture *m, npy_intp j)
{
    return j == 0 ? 0 : m->ends[j - 1];
}

/* The rows of x that a network takes: these themselves if it takes all. */
static PyArrayObject *
gather(const mixture *m, npy_intp j)
{
    npy_intp first = start_of(m, j), n = m->ends[j] - first;
    size_t size = (size_t)(m->n_columns * PyArray_ITEMSIZE(m->x));
    PyArrayObject *rows;

    if (n == m->n_tokens) {
        return rows_of(m->x, 0, n);
    }
    rows = py_new_array(2, (npy_intp[]){n, m->n_columns}, PyArray_TYPE(m->x));
    for (npy_intp i = 0; i < n && rows != NULL; i++) {
        memcpy(PyArray_BYTES(rows) + (size_t)i * size,
               PyArray_BYTES(m->x) + (size_t)m->tokens[first + i] * size, size);
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
            return UNKNOWN;
        }
        first[i] = &networks[i].products[FIRST];
        gate[i] = &networks[i].products[GATE];
        last[i] = &networks[i].products[LAST];
    }
    attn_experts_problem e = {.n = n,
                              .first = first,
                              .gate = networks[0].gated ? gate : NULL,
                              .last = last,
                              .rows = m->tokens + place,
                              .weights = m->weights + place,
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
    npy_intp n = m->n_networks - (m->group[SHARED] != Py_None);

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

    for (; *j < m->n_networks && status == 0; (*j)++) {
        n_rows = m->ends[*j] - start_of(m, *j);
        if (n > 0 && m->ends[*j] - place > MOST_ROWS) {
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
    npy_intp n = m->ends[m->n_networks - 1], j = 0; /* no more are set at a time */
    network *networks =
        PyMem_New(network, (size_t)(n < m->n_networks ? n : m->n_networks));
    int status = networks == NULL ? -1 : 0;

    if (networks == NULL) {
        PyErr_NoMemory();
    }
    while (status == 0 && j < m->n_networks) {
        status = run_some(m, networks, &j);
    }
    PyMem_Free(networks);
    return status;
}

/* ---- The call ------------------------------------------------------------------------- */

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
        return UNKNOWN;
    }
    if (py_make_contiguous(&m->x, type) < 0) {
        return -1;
    }
    if (PyArray_NDIM(m->x) == 0 || PyArray_SIZE(m->x) == 0) {
        return UNKNOWN;
    }
    m->n_columns = py_axis_length(m->x, 0);
    m->n_tokens = PyArray_SIZE(m->x) / m->n_columns;
    PyArrayObject *rows = rows_of(m->x, 0, m->n_tokens);
    status = rows == NULL ? -1 : route(m, rows);
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
    } else if (status == UNKNOWN) {
        result = Py_NewRef(Py_None);
    }
    PyMem_Free(m.ends);
    PyMem_Free(m.tokens);
    PyMem_Free(m.weights);
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
