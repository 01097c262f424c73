/* Which networks of a mixture tokens take, with the bits of attnpy.blocks.experts. */
#include "python/routing.h"

#include "python/arrays.h"
#include "python/attention.h"
#include "python/linear.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/options.h"

#include <math.h>

typedef struct {
    PyObject *const *group; /* Experts */
    PyObject *softmax;      /* options of attention */
    attn_call *call;
    npy_intp n_columns; /* of the tokens */
} context;

/* The softmax of scores (T, N), as attnpy._softmax has it: the weights of attention whose
 * queries and keys are empty. */
static PyArrayObject *
softmax(const context *c, PyArrayObject *scores)
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
        py_convert_inputs(inputs, c->softmax, &a, &p, &o) == 0) {
        o.n_threads = c->call->n_threads;
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
multiply(const context *c, PyArrayObject *x, PyObject *weight, PyObject *bias,
         PyArrayObject **scores)
{
    PyArrayObject *matrix = NULL, *found = NULL;
    attn_dtype dtype;

    *scores = NULL;
    if (!py_storage_of(py_type_number(weight), &dtype) ||
        attn_storage_of(dtype)->arithmetic != ATTN_F32) {
        return PY_UNKNOWN;
    }
    if (py_as_array(weight, "router", &matrix) < 0) {
        return -1;
    }
    bool known = PyArray_NDIM(matrix) == 2 && PyArray_DIM(matrix, 0) == c->n_columns;
    if (known) {
        py_linear_objects objects = {
            (PyObject *)x, (PyObject *)matrix, bias, Py_None, Py_None, Py_None};
        found =
            py_multiply(&objects, attn_is_half(dtype) ? PY_WIDE : PY_PROMOTED, c->call);
    }
    Py_DECREF(matrix);
    if (found == NULL || PyArray_TYPE(found) != NPY_FLOAT) {
        known = known && found == NULL;
        Py_XDECREF(found);
        return known ? -1 : PY_UNKNOWN;
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
choose(npy_intp k, const float *p, npy_intp n, npy_intp *chosen, float *weights,
       bool renormalizes)
{
    npy_intp n_found = 0;
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
group_tokens(py_routes *r, const npy_intp *chosen, const float *weights)
{
    npy_intp n = r->n_tokens * r->n_chosen, start = 0;

    memset(r->ends, 0, (size_t)r->n_networks * sizeof *r->ends);
    for (npy_intp i = 0; i < n; i++) {
        r->ends[chosen[i]]++;
    }
    for (npy_intp j = 0; j < r->n_networks; j++) { /* first they are starts */
        npy_intp count = r->ends[j];
        r->ends[j] = start;
        start += count;
    }
    for (npy_intp i = 0; i < n; i++) {
        npy_intp at = r->ends[chosen[i]]++;
        r->tokens[at] = i / r->n_chosen;
        r->weights[at] = weights[i];
    }
}

/* Adds the network that all tokens take, with its shares (T, 2). */
static void
share_network(py_routes *r, const float *shares)
{
    npy_intp first = r->n_tokens * r->n_chosen;

    for (npy_intp t = 0; t < r->n_tokens; t++) {
        r->tokens[first + t] = t;
        r->weights[first + t] = shares[2 * t];
    }
    r->ends[r->n_networks - 1] = first + r->n_tokens;
}

/* The shares (T, 2) of the network for all tokens and of none: the logistic function is the
 * softmax of a number and 0. */
static int
set_shares(const context *c, PyArrayObject *x, PyArrayObject **shares)
{
    PyArrayObject *scores, *both = NULL;
    npy_intp n = PyArray_DIM(x, 0);
    int status = multiply(c, x, c->group[SHARED_GATE], Py_None, &scores);

    if (status == 0 && PyArray_DIM(scores, 1) != 1) {
        status = PY_UNKNOWN;
    }
    if (status == 0) {
        both = py_new_zeros(2, (npy_intp[]){n, 2}, NPY_FLOAT);
        status = both == NULL ? -1 : 0;
    }
    for (npy_intp t = 0; t < n && status == 0; t++) {
        ((float *)PyArray_DATA(both))[2 * t] = ((const float *)PyArray_DATA(scores))[t];
    }
    if (status == 0) {
        *shares = softmax(c, both);
        status = *shares == NULL ? -1 : 0;
    }
    Py_XDECREF(scores);
    Py_XDECREF(both);
    return status;
}

/* Chooses the networks of all tokens. */
static int
choose_all(const context *c, PyArrayObject *scores, PyArrayObject *shares, py_routes *r)
{
    npy_intp k = r->n_chosen, n = r->n_tokens * k, n_scores = PyArray_DIM(scores, 1);
    int renormalizes = py_parse_flag(c->group[RENORMALIZE], "renormalize");
    PyArrayObject *p = renormalizes < 0 ? NULL : softmax(c, scores);
    npy_intp *chosen = PyMem_New(npy_intp, (size_t)n);
    float *weights = PyMem_New(float, (size_t)n);

    if (p != NULL && chosen != NULL && weights != NULL) {
        for (npy_intp t = 0; t < r->n_tokens; t++) {
            choose(k, (const float *)PyArray_DATA(p) + t * n_scores, n_scores,
                   chosen + t * k, weights + t * k, renormalizes);
        }
        group_tokens(r, chosen, weights);
        if (shares != NULL) {
            share_network(r, PyArray_DATA(shares));
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

/* Makes room for the routes of n tokens among networks with these scores (T, N). */
static int
make_routes(const context *c, PyArrayObject *scores, npy_intp n_tokens, py_routes *r)
{
    npy_intp n = PyArray_DIM(scores, 1);
    bool shared = c->group[SHARED] != Py_None;
    int overflow;
    int64_t k;

    if (!PyList_Check(c->group[NETWORKS]) || PyList_GET_SIZE(c->group[NETWORKS]) != n) {
        return PY_UNKNOWN;
    }
    if (py_parse_integer(c->group[PER_TOKEN], "num_experts_per_token", &k, &overflow) <
        0) {
        return -1;
    }
    if (overflow != 0 || k < 1 || k > n) {
        return PY_UNKNOWN;
    }
    *r = (py_routes){
        .n_tokens = n_tokens, .n_chosen = (npy_intp)k, .n_networks = n + shared};
    n = n_tokens * (r->n_chosen + shared);
    r->ends = PyMem_New(npy_intp, (size_t)r->n_networks);
    r->tokens = PyMem_New(int64_t, (size_t)n);
    r->weights = PyMem_New(float, (size_t)n);
    if (r->ends == NULL || r->tokens == NULL || r->weights == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

int
py_route(PyArrayObject *x, PyObject *const *group, PyObject *softmax, attn_call *call,
         py_routes *r)
{
    context c = {group, softmax, call, PyArray_DIM(x, 1)};
    PyArrayObject *scores, *shares = NULL;
    int status = multiply(&c, x, group[ROUTER], group[ROUTER_BIAS], &scores);

    if (status == 0) {
        status = make_routes(&c, scores, PyArray_DIM(x, 0), r);
    }
    if (status == 0 && group[SHARED] != Py_None) {
        status = set_shares(&c, x, &shares);
    }
    if (status == 0) {
        status = choose_all(&c, scores, shares, r);
    }
    Py_XDECREF(scores);
    Py_XDECREF(shares);
    return status;
}

void
py_release_routes(py_routes *r)
{
    PyMem_Free(r->ends);
    PyMem_Free(r->tokens);
    PyMem_Free(r->weights);
}
