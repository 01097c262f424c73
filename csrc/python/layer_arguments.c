/* From the arguments of layer() to arrays. */
#include "python/layer.h"

#include "python/numbers.h"
#include "python/objects.h"
#include "python/options.h"

void
py_release_layer(layer_call *c)
{
    for (int i = 0; i < N_PARTS; i++) {
        projection *s = &c->parts[i];
        py_release_linear(&s->arrays);
        py_release_norm(&s->norm);
        Py_CLEAR(s->projected);
        Py_CLEAR(s->cos_sin);
        Py_CLEAR(s->cache);
        Py_CLEAR(s->scales);
        Py_CLEAR(s->result);
    }
    py_release_attention(&c->attention);
    py_release_linear(&c->arrays);
    Py_CLEAR(c->past_lengths);
    Py_CLEAR(c->concat);
    Py_CLEAR(c->output);
    Py_CLEAR(c->arena.bytes); /* last: the others lie in it */
}

/* A matrix and its bias. */
static int
convert_matrix(PyObject *const *w, const char *const names[2], py_linear_arrays *a)
{
    return py_as_weight(w[0], names[0], &a->weight) < 0
               ? -1
               : py_as_optional_array(w[1], names[1], &a->bias);
}

static int
parse_heads(PyObject *object, const char *name, int64_t *n)
{
    int overflow;

    if (py_parse_integer(object, name, n, &overflow) < 0) {
        return -1;
    }
    return py_check_range(*n, name, 1, ATTN_MAX_DIM);
}

static int
convert_heads(PyObject *group, layer_call *c)
{
    PyObject *const *heads = py_items(group, "heads", N_HEADS);

    if (heads == NULL ||
        parse_heads(heads[NUM_HEADS], "num_heads", &c->n_heads[0]) < 0 ||
        parse_heads(heads[NUM_KV_HEADS], "num_kv_heads", &c->n_heads[1]) < 0) {
        return -1;
    }
    c->n_heads[2] = c->n_heads[1];
    return py_copy_integers(heads[WEIGHT_GROUPS], "weight_groups",
                            &c->attention.weight_groups);
}

/* Converts the tokens, which may have to be normalized. */
static int
convert_tokens(PyObject *tokens, PyObject *group, layer_call *c)
{
    PyObject *const *norms = NULL;
    PyObject *x;
    int status;

    if (group != Py_None && (norms = py_items(group, "norms", N_NORMS)) == NULL) {
        return -1;
    }
    if (norms == NULL || norms[X_NORM] == Py_None) {
        return py_as_array(tokens, "x", &c->parts[0].arrays.input);
    }
    attn_call call = {.tier = c->options.tier,
                      .n_threads = c->options.n_threads,
                      .n_awake = c->n_awake};
    x = py_normalize(tokens, Py_None, norms[X_NORM], &call);
    c->n_awake = call.n_awake;
    status = x == NULL ? -1 : py_as_array(x, "x", &c->parts[0].arrays.input);
    Py_XDECREF(x);
    return status;
}

/* Converts the matrices, and the tokens that they take. */
static int
convert_projections(PyObject *x, PyObject *context, PyObject *const *groups,
                    layer_call *c)
{
    PyObject *const *w = py_items(groups[PROJECTIONS], "projections", N_PROJECTIONS);
    projection *q = &c->parts[0], *k = &c->parts[1], *v = &c->parts[2];
    PyObject *source = context, *residual;
    int mixed;

    static const char *const names[4][2] = {
        {"W_q", "b_q"}, {"W_k", "b_k"}, {"W_v", "b_v"}, {"W_o", "b_o"}};

    /* The tokens first: converting them may run code that changes the matrices. */
    if (w == NULL || convert_tokens(x, groups[NORMS], c) < 0 ||
        convert_matrix(w + W_Q, names[0], &q->arrays) < 0) {
        return -1;
    }
    c->own_keys = context == Py_None && w[VALUE_CONTEXT] == Py_None;
    if (context == Py_None) { /* the array itself, if something was converted */
        source = (PyObject *)q->arrays.input;
    }
    if (w[W_K] != Py_None && (convert_matrix(w + W_K, names[1], &k->arrays) < 0 ||
                              py_as_array(source, "context", &k->arrays.input) < 0 ||
                              convert_matrix(w + W_V, names[2], &v->arrays) < 0)) {
        return -1;
    }
    if (w[W_K] == Py_None || w[VALUE_CONTEXT] == Py_None) {
        v->arrays.input = k->arrays.input;
        Py_XINCREF(v->arrays.input);
    } else if (py_as_array(w[VALUE_CONTEXT], "value", &v->arrays.input) < 0) {
        return -1;
    }
    residual = c->residual == NULL ? w[RESIDUAL] : c->residual;
    if (w[W_O] == Py_None && residual != Py_None) {
        PyErr_SetString(PyExc_TypeError,
                        "residual: expected None without W_o, got an array");
        return -1;
    }
    if (w[W_O] != Py_None &&
        (convert_matrix(w + W_O, names[3], &c->arrays) < 0 ||
         py_as_optional_array(residual, "residual", &c->arrays.residual) < 0)) {
        return -1;
    }
    mixed = py_parse_flag(w[MIXED], "mixed");
    c->mixed = mixed > 0;
    return mixed < 0 ? -1 : 0;
}

static int
convert_norm(PyObject *group, const char *name, py_norm *norm)
{
    return group == Py_None ? 0 : py_convert_norm(group, name, norm);
}

static int
convert_norms(PyObject *group, layer_call *c)
{
    PyObject *const *norms;

    if (group == Py_None) {
        return 0;
    }
    norms = py_items(group, "norms", N_NORMS);
    return norms == NULL ||
                   convert_norm(norms[Q_NORM], "q_norm", &c->parts[0].norm) < 0 ||
                   convert_norm(norms[K_NORM], "k_norm", &c->parts[1].norm) < 0
               ? -1
               : 0;
}

static int
convert_rotary(PyObject *group, layer_call *c)
{
    PyObject *const *rotary;
    int interleaved;

    if (group == Py_None) {
        return 0;
    }
    rotary = py_items(group, "rotary", N_ROTARY);
    if (rotary == NULL ||
        py_as_optional_array(rotary[Q_COS_SIN], "rotary", &c->parts[0].cos_sin) < 0 ||
        py_as_optional_array(rotary[K_COS_SIN], "rotary", &c->parts[1].cos_sin) < 0 ||
        (interleaved = py_parse_flag(rotary[INTERLEAVED], "interleaved")) < 0) {
        return -1;
    }
    for (int i = 0; i < N_PARTS; i++) {
        c->parts[i].rotary.interleaved = interleaved;
    }
    return 0;
}

static int
convert_cache(PyObject *group, layer_call *c)
{
    PyObject *const *cache;

    if (group == Py_None) {
        return 0;
    }
    cache = py_items(group, "cache", N_CACHE);
    return cache == NULL ||
                   py_as_array(cache[CACHE_KEY], "cache", &c->parts[1].cache) < 0 ||
                   py_as_array(cache[CACHE_VALUE], "cache", &c->parts[2].cache) < 0 ||
                   py_as_optional_array(cache[CACHE_KEY_SCALE], "cache",
                                        &c->parts[1].scales) < 0 ||
                   py_as_optional_array(cache[CACHE_VALUE_SCALE], "cache",
                                        &c->parts[2].scales) < 0 ||
                   py_copy_integers(cache[PAST_LENGTHS], "past_lengths",
                                    &c->past_lengths) < 0
               ? -1
               : 0;
}

/* Keys and values are projected, in a cache, or both. */
static int
check_source(const layer_call *c)
{
    bool projects = c->parts[1].arrays.input != NULL;
    bool cached = c->parts[1].cache != NULL;

    if ((projects || cached) && (c->past_lengths != NULL) == (projects && cached)) {
        return 0;
    }
    PyErr_SetString(PyExc_TypeError,
                    "cache: expected past_lengths with W_k, and a cache without");
    return -1;
}

int
py_convert_layer(PyObject *x, PyObject *context, PyObject *const *groups, layer_call *c)
{
    PyObject *const *options = py_items(groups[OPTIONS], "options", N_OPTIONS);

    if (options == NULL || py_parse_options(options, &c->problem, &c->options) < 0 ||
        convert_heads(groups[HEADS], c) < 0 ||
        convert_projections(x, context, groups, c) < 0 ||
        convert_norms(groups[NORMS], c) < 0 || convert_rotary(groups[ROTARY], c) < 0 ||
        convert_cache(groups[CACHE], c) < 0 || check_source(c) < 0) {
        return -1;
    }
    if (c->options.return_lse || c->options.out != Py_None) {
        PyErr_SetString(PyExc_TypeError,
                        "options: expected neither return_lse nor out for a layer");
        return -1;
    }
    return py_convert_options(options, &c->attention);
}
