/* attend_partial(): attention over a part of the keys, and the state for the other
 * parts. */
#include "python/partial.h"

#include "python/arrays.h"
#include "python/attention.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"

enum { STATE_COLUMNS = 2 /* beside those of the output: maximum and sum */ };

typedef struct {
    py_attention_arrays a;
    PyArrayObject *state; /* what a former call has left, or none */
    PyArrayObject *next;  /* the state after the call, unless it is to end */
    attn_partial partial; /* both, described */
} partial_arrays;

/* Describes the state of a former call. */
static int
check_state(PyArrayObject *state, int type, int n_axes, const npy_intp *shape,
            bool drop_row, const attn_problem *p, attn_array *to)
{
    if (state == NULL || PyArray_TYPE(state) != type || !PyArray_ISCARRAY_RO(state) ||
        PyArray_NDIM(state) != n_axes ||
        !PyArray_CompareLists(PyArray_DIMS(state), shape, n_axes)) {
        PyErr_Format(PyExc_ValueError,
                     "state: expected one of queries, heads and values of the same "
                     "sizes and dtype, (..., %zd, %zd), got another",
                     (Py_ssize_t)p->n_queries, (Py_ssize_t)p->value_dim);
        return -1;
    }
    py_describe_result(to, state, drop_row, p);
    return 0;
}

/* Takes the former state, if any, and makes the next one, or the results at the end. */
static int
make_states(partial_arrays *x, bool begins, bool ends, int rank, const py_options *o,
            int type, attn_problem *p)
{
    bool drop_row = PyArray_NDIM(x->a.query) == 1;
    int real = py_real_type(type);
    npy_intp shape[ATTN_MAX_AXES];
    int n_axes =
        py_result_shape(p, rank, p->value_dim + STATE_COLUMNS, drop_row, shape);

    p->partial = &x->partial;
    x->partial.before.dtype = x->partial.after.dtype = p->arithmetic;
    if (!begins && check_state(x->state, real, n_axes, shape, drop_row, p,
                               &x->partial.before) < 0) {
        return -1;
    }
    if (ends) {
        return py_make_results(&x->a, o, type, rank, p);
    }
    x->next = py_new_array(n_axes, shape, real);
    if (x->next == NULL) {
        return -1;
    }
    py_describe_result(&x->partial.after, x->next, drop_row, p);
    return 0;
}

static int
compute(const partial_arrays *x, const attn_problem *p, const py_options *o)
{
    attn_call call = {.tier = o->tier, .n_threads = o->n_threads};
    py_lock lock;

    if (x->next == NULL) {
        return py_compute(&x->a, p, o);
    }
    if (PyArray_SIZE(x->next) == 0) {
        return 0;
    }
    py_give_up_lock(&lock, attn_attention_work(p), &call);
    return py_take_lock_back(&lock, attn_attention(p, &call), &call);
}

PyDoc_STRVAR(attend_partial_doc,
             "attend_partial(query, key, value, options, state, ends, /)\n--\n\nAttend "
             "to some more keys: the state (..., H, Lq, Dv + 2) after them, or what "
             "attention() returns if that was all. The former state is None at first.");

static PyObject *
attend_partial(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    partial_arrays x = {.next = NULL};
    attn_problem p;
    py_options o;
    PyObject *result = NULL;
    int type = -1, rank = -1, ends;
    bool begins;

    (void)module;
    if (py_check_count(n_arguments, 6, 6) < 0 ||
        (ends = py_parse_flag(arguments[5], "ends")) < 0) {
        return NULL;
    }
    begins = arguments[4] == Py_None;
    x.state = py_view_of(arguments[4]);
    if (!PyErr_Occurred() &&
        py_convert_inputs(arguments, arguments[3], &x.a, &p, &o) == 0) {
        type = py_inputs_type(&x.a);
    }
    if (type >= 0) {
        rank = py_set_attention(&x.a, type, &o, &p);
    }
    if (rank >= 0 && make_states(&x, begins, ends, rank, &o, type, &p) == 0 &&
        compute(&x, &p, &o) == 0) {
        result = ends ? py_pack_results(&x.a, o.out) : Py_NewRef((PyObject *)x.next);
    }
    Py_XDECREF(x.state);
    Py_XDECREF(x.next);
    py_release_attention(&x.a);
    return result;
}

PyMethodDef py_partial_methods[] = {
    {"attend_partial", PY_FUNCTION(attend_partial), METH_FASTCALL, attend_partial_doc},
    {NULL, NULL, 0, NULL},
};
