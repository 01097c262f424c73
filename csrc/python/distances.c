/* distance_scores(): scores of queries and keys, from products with a table of distances. */
#include "python/distances.h"

#include "core/distances.h"
#include "python/arrays.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"

/* The arrays of a call, owned. */
typedef struct {
    PyArrayObject *of_queries, *of_keys, *columns, *output;
} distances_call;

/* Checks the products, and makes both of one type; that, or -1. */
static int
read_products(distances_call *c, attn_distances_problem *p)
{
    const int types[2] = {PyArray_TYPE(c->of_queries), PyArray_TYPE(c->of_keys)};
    int type;

    if (PyArray_NDIM(c->of_queries) != 3) {
        return py_fail_shape(c->of_queries, "of_queries", "(H, n, m)", 0, 0);
    }
    if (!PyArray_SAMESHAPE(c->of_queries, c->of_keys)) {
        return py_fail_shape(c->of_keys, "of_keys", "the shape of of_queries", 0, 0);
    }
    if (py_check_operand(c->of_queries, "of_queries") < 0 ||
        py_check_operand(c->of_keys, "of_keys") < 0 ||
        (type = py_common_type(2, types, "of_queries, of_keys")) < 0) {
        return -1;
    }
    type = py_real_type(type);
    if (py_cast_array(&c->of_queries, type) < 0 ||
        py_cast_array(&c->of_keys, type) < 0) {
        return -1;
    }
    py_describe(&p->of_queries, c->of_queries, 0, 0);
    py_describe(&p->of_keys, c->of_keys, 0, 0);
    p->n_heads = PyArray_DIM(c->of_queries, 0);
    p->n = PyArray_DIM(c->of_queries, 1);
    p->dtype = py_dtype_of(type);
    return type;
}

/* Checks the columns, for products with m of them. */
static int
read_columns(distances_call *c, attn_distances_problem *p, npy_intp m)
{
    npy_intp n = p->n == 0 ? 0 : 2 * p->n - 1;

    if (PyArray_NDIM(c->columns) != 1 || PyArray_DIM(c->columns, 0) != n) {
        return py_fail_shape(c->columns, "columns", "(%zd,)", n, 0);
    }
    if (PyArray_TYPE(c->columns) != NPY_INT64) {
        return py_fail_dtype(c->columns, "columns", "int64");
    }
    if (py_make_contiguous(&c->columns, NPY_INT64) < 0) {
        return -1;
    }
    p->columns = PyArray_DATA(c->columns);
    for (npy_intp i = 0; i < n; i++) {
        if (py_check_range(p->columns[i], "columns", 0, m - 1) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
compute(distances_call *c, attn_call *call)
{
    attn_distances_problem p = {0};
    int type = read_products(c, &p);
    py_lock lock;

    if (type < 0 || read_columns(c, &p, PyArray_DIM(c->of_queries, 2)) < 0) {
        return -1;
    }
    c->output = py_new_array(3, (npy_intp[]){p.n_heads, p.n, p.n}, type);
    if (c->output == NULL) {
        return -1;
    }
    if (PyArray_SIZE(c->output) == 0) {
        return 0;
    }
    p.output = PyArray_BYTES(c->output);
    py_give_up_lock(&lock, attn_distances_work(&p), call);
    attn_distances(&p, call);
    return py_take_lock_back(&lock, 0, call);
}

PyDoc_STRVAR(distance_scores_doc,
             "distance_scores(of_queries, of_keys, columns, num_threads, /)\n--\n\n"
             "of_queries[h, i, c] + of_keys[h, j, c] for all h, i, j, with c = "
             "columns[i - j + n - "
             "1].");

static PyObject *
distance_scores(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    distances_call c = {NULL};
    attn_call call = {NULL};

    (void)module;
    if (py_check_count(n_arguments, 4, 4) < 0 ||
        py_threads_or_default(arguments[3], &call.n_threads) < 0) {
        return NULL;
    }
    if (py_as_array(arguments[0], "of_queries", &c.of_queries) < 0 ||
        py_as_array(arguments[1], "of_keys", &c.of_keys) < 0 ||
        py_as_array(arguments[2], "columns", &c.columns) < 0 ||
        compute(&c, &call) < 0) {
        Py_CLEAR(c.output);
    }
    Py_XDECREF(c.of_queries);
    Py_XDECREF(c.of_keys);
    Py_XDECREF(c.columns);
    return (PyObject *)c.output;
}

PyMethodDef py_distances_methods[] = {
    {"distance_scores", PY_FUNCTION(distance_scores), METH_FASTCALL,
     distance_scores_doc},
    {NULL, NULL, 0, NULL},
};
