/* attention(): its results, and the call itself. */
#include "python/attention.h"

#include "python/arrays.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/objects.h"

/* Checks `out` and makes it the output if the core can write there without disturbing an
 * input; else leaves the output to be allocated. */
static int
accept_out(py_attention_arrays *a, int type, int n_axes, const npy_intp *shape)
{
    PyArrayObject *const inputs[] = {a->query,       a->key,  a->value, a->key_scale,
                                     a->value_scale, a->mask, a->bias,  a->sinks};

    if (py_check_out(a->out, type, n_axes, shape) < 0) {
        return -1;
    }
    bool apart = PyArray_ISBEHAVED(a->out);
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        apart = apart && !py_may_overlap(a->out, inputs[i]);
    }
    if (apart) {
        Py_INCREF(a->out);
        a->output = a->out;
    }
    return 0;
}

void
py_describe_result(attn_array *to, PyArrayObject *array, bool drop_row,
                   const attn_problem *p)
{
    if (!drop_row) {
        py_describe(to, array, 0, p->batch.n_axes);
        return;
    }
    /* (..., head, column) is described as (..., head, row), then the axes are swapped. */
    py_describe(to, array, 1, p->batch.n_axes);
    to->column_stride = to->row_stride;
    to->row_stride = 0;
}

int
py_output_shape(const py_attention_arrays *a, const attn_problem *p, int rank,
                npy_intp shape[ATTN_MAX_AXES])
{
    if (a->query_starts == NULL) {
        return py_result_shape(p, rank, p->value_dim, PyArray_NDIM(a->query) == 1,
                               shape);
    }
    shape[0] = p->n_kv_heads * p->group;
    shape[1] = PyArray_DIM(a->query, 1);
    shape[2] = p->value_dim;
    return 3;
}

/* Takes the groups of heads whose weights are wanted, if given; returns the number of
 * groups. */
static npy_intp
set_weight_groups(py_attention_arrays *a, const attn_problem *p)
{
    const int64_t *groups;
    int64_t n = 0;

    a->described_weights.groups = NULL;
    if (a->weight_groups == NULL) {
        return p->n_kv_heads;
    }
    if (PyArray_NDIM(a->weight_groups) != 1 ||
        PyArray_DIM(a->weight_groups, 0) != p->n_kv_heads) {
        return py_fail_shape(a->weight_groups, "weight_groups", "(%zd,)", p->n_kv_heads,
                             0);
    }
    a->described_weights.groups = groups = PyArray_DATA(a->weight_groups);
    for (ptrdiff_t h = 0; h < p->n_kv_heads; h++) {
        int64_t group = groups[h];
        if (py_check_range(group, "weight_groups", -1, p->n_kv_heads - 1) < 0) {
            return -1;
        }
        n = group >= n ? group + 1 : n;
    }
    return (npy_intp)n;
}

/* Allocates the weights; one query has no axis for rows. */
static int
make_weights(py_attention_arrays *a, int type, int rank, attn_problem *p)
{
    bool drop_row = PyArray_NDIM(a->query) == 1;
    npy_intp shape[ATTN_MAX_AXES];
    int n_axes = py_result_shape(p, rank, p->n_keys, drop_row, shape);
    npy_intp n_groups = set_weight_groups(a, p);

    if (n_groups < 0) {
        return -1;
    }
    if (a->weight_groups != NULL) { /* of a layer, which has both axes */
        shape[n_axes - 3] = n_groups * p->group;
    }
    if (py_check_size(n_axes, shape, "weights") < 0) {
        return -1;
    }
    a->weights = py_new_zeros(n_axes, shape, type);
    if (a->weights == NULL) {
        return -1;
    }
    py_describe_result(&a->described_weights.array, a->weights, drop_row, p);
    p->weights = &a->described_weights;
    return 0;
}

int
py_make_results(py_attention_arrays *a, const py_options *o, int type, int rank,
                attn_problem *p)
{
    bool drop_row = PyArray_NDIM(a->query) == 1;
    npy_intp shape[ATTN_MAX_AXES];
    int n_axes = py_output_shape(a, p, rank, shape);

    if (a->out != NULL && accept_out(a, type, n_axes, shape) < 0) {
        return -1;
    }
    if (a->output == NULL) {
        a->output = py_new_array(n_axes, shape, type);
        if (a->output == NULL) {
            return -1;
        }
    }
    py_describe_result(&p->output, a->output, drop_row, p);
    if (o->return_lse) {
        int real = py_real_type(type);
        a->lse = py_new_array(n_axes - 1, shape, real);
        if (a->lse == NULL) {
            return -1;
        }
        p->lse.dtype = p->arithmetic;
        py_describe(&p->lse, a->lse, drop_row ? 2 : 1, p->batch.n_axes);
    }
    return o->return_weights ? make_weights(a, type, rank, p) : 0;
}

PyObject *
py_pack(PyObject *output, PyObject *weights, PyObject *lse)
{
    if (weights != NULL && lse != NULL) {
        return PyTuple_Pack(3, output, weights, lse);
    }
    if (weights != NULL || lse != NULL) {
        return PyTuple_Pack(2, output, weights != NULL ? weights : lse);
    }
    return Py_NewRef(output);
}

PyObject *
py_pack_results(const py_attention_arrays *a, PyObject *out)
{
    if (a->out != NULL && a->out != a->output &&
        PyArray_CopyInto(a->out, a->output) < 0) {
        return NULL;
    }
    return py_pack(a->out == NULL ? (PyObject *)a->output : out, (PyObject *)a->weights,
                   (PyObject *)a->lse);
}

static bool
has_elements(PyArrayObject *array)
{
    return array != NULL && PyArray_SIZE(array) > 0;
}

bool
py_has_results(const py_attention_arrays *a)
{
    return has_elements(a->output) || has_elements(a->weights) || has_elements(a->lse);
}

int
py_compute(const py_attention_arrays *a, const attn_problem *p, const py_options *o)
{
    attn_call call = {.tier = o->tier, .n_threads = o->n_threads};
    py_lock lock;

    if (!py_has_results(a)) {
        return 0;
    }
    py_give_up_lock(&lock, attn_attention_work(p), &call);
    return py_take_lock_back(&lock, attn_attention(p, &call), &call);
}

PyDoc_STRVAR(attention_doc,
             "attention(query, key, value, options, /)\n--\n\nAs attnpy.attention; "
             "options is an attnpy._options.Options.");

static PyObject *
attention(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    py_attention_arrays a = {0};
    attn_problem p;
    py_options o;
    PyObject *result = NULL;

    (void)module;
    if (py_prepare(arguments, n_arguments, &a, &p, &o) >= 0 &&
        py_compute(&a, &p, &o) == 0) {
        result = py_pack_results(&a, o.out);
    }
    py_release_attention(&a);
    return result;
}

PyMethodDef py_attention_methods[] = {
    {"attention", PY_FUNCTION(attention), METH_FASTCALL, attention_doc},
    {NULL, NULL, 0, NULL},
};
