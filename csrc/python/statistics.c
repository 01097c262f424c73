/* statistics(): attention's arguments, with other results. */
#include "python/statistics.h"

#include "core/statistics.h"
#include "python/arrays.h"
#include "python/attention.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"

typedef struct {
    py_attention_arrays a;
    PyArrayObject *received, *entropy, *distance, *top_weights, *top_keys;
} statistics_arrays;

static void
release(statistics_arrays *x)
{
    py_release_attention(&x->a);
    Py_CLEAR(x->received);
    Py_CLEAR(x->entropy);
    Py_CLEAR(x->distance);
    Py_CLEAR(x->top_weights);
    Py_CLEAR(x->top_keys);
}

static int
parse_top_k(PyObject *object, ptrdiff_t *top_k)
{
    int64_t k;
    int overflow;

    if (py_parse_integer(object, "top_k", &k, &overflow) < 0) {
        return -1;
    }
    if (overflow != 0 || k < 0 || k > ATTN_MAX_DIM) {
        PyErr_Format(PyExc_ValueError,
                     "top_k: expected an integer from 0 to %lld, got %R",
                     (long long)ATTN_MAX_DIM, object);
        return -1;
    }
    *top_k = (ptrdiff_t)k;
    return 0;
}

/* Makes an array of this many axes, and describes it: it lacks the last `missing` of
 * head, row and column. */
static int
make_result(PyArrayObject **array, attn_array *to, const attn_problem *p, int n_axes,
            const npy_intp *shape, int type, int missing)
{
    *array = py_new_zeros(n_axes, shape, type);
    if (*array == NULL) {
        return -1;
    }
    py_describe(to, *array, missing, p->batch.n_axes);
    return 0;
}

static int
make_received(statistics_arrays *x, const attn_problem *p, int rank, int type,
              attn_statistics *s)
{
    npy_intp shape[ATTN_MAX_AXES];
    int n_axes;

    if (x->a.key_starts != NULL) { /* packed as the keys are */
        n_axes = 2;
        shape[0] = p->n_kv_heads * p->group;
        shape[1] = PyArray_DIM(x->a.key, 1);
    } else {
        n_axes = py_result_shape(p, rank, p->n_keys, true, shape);
    }
    return make_result(&x->received, &s->received, p, n_axes, shape, type, 1);
}

static int
make_top(statistics_arrays *x, const attn_problem *p, int n_axes, npy_intp *shape,
         int type, attn_statistics *s)
{
    int missing = PyArray_NDIM(x->a.query) == 1; /* the row, whose stride is 0 then */

    shape[n_axes - 1] = s->top_k;
    if (make_result(&x->top_weights, &s->top_weights, p, n_axes, shape, type, missing) <
            0 ||
        make_result(&x->top_keys, &s->top_keys, p, n_axes, shape, NPY_INT64, missing) <
            0) {
        return -1;
    }
    if (missing) {
        s->top_weights.row_stride = s->top_keys.row_stride = 0;
    }
    return 0;
}

/* Makes the results that are wanted: (received, entropy, distance, top_k). */
static int
make_results(statistics_arrays *x, PyObject *const *wanted, const attn_problem *p,
             int rank, attn_statistics *s)
{
    int type = py_real_type(PyArray_TYPE(x->a.output));
    int missing = PyArray_NDIM(x->a.query) == 1 ? 2 : 1;
    npy_intp shape[ATTN_MAX_AXES];
    int n_axes = py_output_shape(&x->a, p, rank, shape);

    if (wanted[RECEIVED] == Py_True && make_received(x, p, rank, type, s) < 0) {
        return -1;
    }
    if (wanted[ENTROPY] == Py_True &&
        make_result(&x->entropy, &s->entropy, p, n_axes - 1, shape, type, missing) <
            0) {
        return -1;
    }
    if (wanted[DISTANCE] == Py_True &&
        make_result(&x->distance, &s->distance, p, n_axes - 1, shape, type, missing) <
            0) {
        return -1;
    }
    return s->top_k > 0 ? make_top(x, p, n_axes, shape, type, s) : 0;
}

static PyObject *
pack(const statistics_arrays *x)
{
    PyArrayObject *const results[] = {x->received,    x->entropy,  x->distance,
                                      x->top_weights, x->top_keys, x->a.output};
    PyObject *tuple = PyTuple_New(sizeof results / sizeof results[0]);

    for (Py_ssize_t i = 0; tuple != NULL && i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = results[i] == NULL ? Py_None : (PyObject *)results[i];
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(item));
    }
    return tuple;
}

PyDoc_STRVAR(statistics_doc,
             "statistics(query, key, value, options, wanted, /)\n--\n\nAs "
             "attnpy.statistics, and the output, which is last; wanted is an "
             "attnpy._options.Wanted.");

static PyObject *
statistics(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    statistics_arrays x = {.received = NULL};
    attn_statistics s = {.top_k = 0};
    attn_problem p;
    py_options o;
    PyObject *const *wanted;
    PyObject *result = NULL;
    py_lock lock;

    (void)module;
    if (py_check_count(n_arguments, 5, 5) < 0) {
        return NULL;
    }
    wanted = py_items(arguments[4], "wanted", N_WANTED);
    if (wanted == NULL || parse_top_k(wanted[TOP_K], &s.top_k) < 0) {
        return NULL;
    }
    int rank = py_prepare(arguments, 4, &x.a, &p, &o);
    if (rank >= 0 && make_results(&x, wanted, &p, rank, &s) == 0) {
        attn_call call = {.tier = o.tier, .n_threads = o.n_threads};
        py_give_up_lock(&lock, attn_measure_work(&p), &call);
        if (py_take_lock_back(&lock, attn_measure(&p, &s, &call), &call) == 0) {
            result = pack(&x);
        }
    }
    release(&x);
    return result;
}

PyMethodDef py_statistics_methods[] = {
    {"statistics", PY_FUNCTION(statistics), METH_FASTCALL, statistics_doc},
    {NULL, NULL, 0, NULL},
};
