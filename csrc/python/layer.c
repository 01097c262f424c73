/* layer(): attention between heads, what follows it, and the run of all steps. */
#include "python/layer.h"

#include "python/arrays.h"
#include "python/lock.h"
#include "python/memory.h"
#include "python/numbers.h"
#include "python/rotary.h"

/* ---- Attention and after -------------------------------------------------------------- */

/* Makes an array for the heads' results side by side, (..., L, H * Dv), and lets attention
 * write there. */
static int
make_concat(layer_call *c, int type, int rank)
{
    const attn_problem *p = &c->problem;
    npy_intp n_heads = p->n_kv_heads * p->group;
    npy_intp shape[ATTN_MAX_AXES]; /* (..., H, L, Dv), then (..., L, H * Dv) */
    int n = py_output_shape(&c->attention, p, rank, shape) - 1;

    shape[n - 2] = shape[n - 1];
    shape[n - 1] = n_heads * p->value_dim;
    c->concat = py_new_array(n, shape, type);
    if (c->concat == NULL) {
        return -1;
    }
    c->attention.output =
        py_make_heads(c->concat, n_heads, p->value_dim, type, PyArray_DATA(c->concat));
    return c->attention.output == NULL ? -1 : 0;
}

/* Results of mixed values are mixed, and become what they were by mixing them again. */
static void
set_results(layer_call *c)
{
    PyArrayObject *heads = c->attention.output;
    attn_rotary_problem *p = &c->results;

    if (c->parts[2].scales == NULL || c->layer.attention == NULL) {
        return;
    }
    py_read_heads(heads, p);
    p->dtype = p->cache_dtype = p->input.dtype = p->output.dtype =
        py_dtype_of(PyArray_TYPE(heads));
    py_describe(&p->input, heads, 0, p->batch.n_axes);
    p->output = p->input;
    p->mixed = true;
    c->layer.results = p;
}

static int
set_attention(layer_call *c, int type)
{
    py_attention_arrays *a = &c->attention;
    PyArrayObject **const inputs[N_PARTS] = {&a->query, &a->key, &a->value};
    PyArrayObject **const scales[N_PARTS] = {NULL, &a->key_scale, &a->value_scale};

    for (int i = 0; i < N_PARTS; i++) {
        *inputs[i] = c->parts[i].result;
        Py_INCREF(*inputs[i]);
        if (c->parts[i].scales != NULL) {
            Py_INCREF(c->parts[i].scales);
            Py_XSETREF(*scales[i], c->parts[i].scales);
        }
    }
    a->ends_with_lengths = true;
    c->problem.is_cold =
        c->past_lengths != NULL; /* all layers' weights were read since */
    int rank = py_set_attention(a, type, &c->options, &c->problem);
    if (rank < 0 || make_concat(c, type, rank) < 0 ||
        py_make_results(a, &c->options, type, rank, &c->problem) < 0) {
        return -1;
    }
    if (c->codes) {
        py_describe_codes(&c->parts[1], &c->problem.key, &c->problem.key_scale);
        py_describe_codes(&c->parts[2], &c->problem.value, &c->problem.value_scale);
    }
    c->layer.attention = py_has_results(a) ? &c->problem : NULL;
    set_results(c);
    return 0;
}

/* The last product, or the heads' results as they are. */
static int
set_output(layer_call *c)
{
    int type;

    if (c->arrays.weight.array == NULL) {
        c->output = c->concat;
        Py_INCREF(c->output);
        return 0;
    }
    npy_intp n_columns = py_axis_length(c->concat, 0);
    if (!py_is_matrix(&c->arrays.weight) ||
        py_weight_rows(&c->arrays.weight) != n_columns) {
        return py_fail_shape(c->arrays.weight.array, "W_o",
                             "(%zd, E), as many rows as the heads have values",
                             n_columns, 0);
    }
    c->arrays.input = c->concat;
    Py_INCREF(c->concat);
    c->linear.activation = ATTN_IDENTITY;
    type = py_set_linear(&c->arrays, c->mixed ? PY_WIDE : PY_PROMOTED, &c->linear);
    c->output = type < 0 ? NULL : py_make_product(&c->arrays, type, &c->linear);
    c->layer.output = &c->linear;
    return c->output == NULL ? -1 : 0;
}

static int
compute_layer(layer_call *c)
{
    attn_call call = {.tier = c->options.tier,
                      .n_threads = c->options.n_threads,
                      .n_awake = c->n_awake};
    py_lock lock;

    py_give_up_lock(&lock, attn_layer_work(&c->layer), &call);
    if (py_take_lock_back(&lock, attn_layer(&c->layer, &call), &call) < 0) {
        return -1;
    }
    c->n_awake = call.n_awake;
    for (int i = 0; i < N_PARTS && c->past_lengths != NULL; i++) {
        const projection *s = &c->parts[i];
        if (s->cache != NULL && s->cache != s->result && py_cache_tokens(c, s) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Everything between the arguments and the computation. */
static int
prepare_layer(layer_call *c)
{
    int type = py_set_heads(c);

    return type < 0 || set_attention(c, type) < 0 ? -1 : set_output(c);
}

PyObject *
py_layer(PyObject *x, PyObject *context, PyObject *const *groups, PyObject *residual,
         int *n_awake)
{
    layer_call c = {.residual = residual, .n_awake = *n_awake}; /* all else is 0 */
    PyObject *result = NULL;

    if (py_convert_layer(x, context, groups, &c) == 0 && prepare_layer(&c) == 0 &&
        compute_layer(&c) == 0) {
        result = c.attention.weights == NULL
                     ? Py_NewRef((PyObject *)c.output)
                     : PyTuple_Pack(2, c.output, c.attention.weights);
    }
    *n_awake = c.n_awake;
    py_release_layer(&c);
    return result;
}

PyDoc_STRVAR(layer_doc,
             "layer(x, context, heads, projections, norms, rotary, cache, options, /)"
             "\n--\n\nAttention with its projections. The groups are those of "
             "attnpy._options; norms, rotary and cache may be None. With past_lengths, "
             "tokens go into the cache, from there up to kv_lengths; without W_k, keys "
             "and values are there already.");

static PyObject *
layer(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    enum { X, CONTEXT, GROUPS, N_ARGUMENTS = GROUPS + N_ATTENTION };
    int n_awake = 0;

    (void)module;
    if (py_check_count(n_arguments, N_ARGUMENTS, N_ARGUMENTS) < 0) {
        return NULL;
    }
    return py_layer(arguments[X], arguments[CONTEXT], arguments + GROUPS, NULL,
                    &n_awake);
}

PyMethodDef py_layer_methods[] = {
    {"layer", PY_FUNCTION(layer), METH_FASTCALL, layer_doc},
    {NULL, NULL, 0, NULL},
};
