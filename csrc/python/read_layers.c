/* read_layers(): reads the attributes of a stack's layers, anew in each call, so that nothing
 * can be out of date. Python would take ten times as long: a token's products drive it out of the
 * CPU's caches. */
#include "python/read_layers.h"

#include "python/arrays.h"
#include "python/attributes.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/options.h"

/* What all layers have in common; borrowed. */
typedef struct {
    PyObject *const *kinds; /* a group Kinds */
    PyObject *x;
    PyObject *mixed;
} context;

static const signed char heads_attributes[N_HEADS] = {
    [NUM_HEADS] = PY_num_heads,
    [NUM_KV_HEADS] = PY_num_kv_heads,
};
static const signed char projection_attributes[N_PROJECTIONS] = {
    [W_Q] = PY_W_q, [B_Q] = PY_b_q, [W_K] = PY_W_k, [B_K] = PY_b_k,
    [W_V] = PY_W_v, [B_V] = PY_b_v, [W_O] = PY_W_o, [B_O] = PY_b_o,
};
static const signed char norms_attributes[N_NORMS] = {
    [Q_NORM] = PY_q_norm,
    [K_NORM] = PY_k_norm,
};
static const signed char layer_norm_attributes[N_NORM] = {
    [NORM_WEIGHT] = PY_weight, [NORM_BIAS] = PY_bias, [NORM_EPS] = PY_eps};
static const signed char rms_norm_attributes[N_NORM] = {[NORM_WEIGHT] = PY_weight,
                                                        [NORM_EPS] = PY_eps};
static const signed char network_attributes[N_NETWORK] = {
    [W_1] = PY_W_1, [B_1] = PY_b_1, [W_GATE] = PY_W_gate,         [B_GATE] = PY_b_gate,
    [W_2] = PY_W_2, [B_2] = PY_b_2, [ACTIVATION] = PY_activation,
};

/* Those of a layer: those of the group, and what a call of it depends on besides. */
enum { CROSS_ATTENTION = N_DECODER_LAYER, NORM_2, N_LAYER };
static const signed char layer_attributes[N_LAYER] = {
    [ATTENTION] = PY_self_attention,
    [NETWORK] = PY_feed_forward,
    [NORM_FIRST] = PY_norm_first,
    [PARALLEL] = PY_parallel,
    [RESIDUAL_SCALE] = PY_residual_scale,
    [NORM_1] = PY_norm_1,
    [NORM_3] = PY_norm_3,
    [AFTER_1] = PY_after_1,
    [AFTER_3] = PY_after_3,
    [CROSS_ATTENTION] = PY_cross_attention,
    [NORM_2] = PY_norm_2,
};

/* Those of an encoder's layer, which has fewer. */
static const signed char encoder_layer_attributes[N_LAYER] = {
    [ATTENTION] = PY_self_attention,
    [NETWORK] = PY_feed_forward,
    [NORM_FIRST] = PY_norm_first,
    [NORM_1] = PY_norm_1,
    [NORM_3] = PY_norm_2,
};

enum { CACHED_LENGTHS = N_CACHE, N_CACHED };
static const signed char cache_attributes[N_CACHED] = {
    [CACHE_KEY] = PY__key,
    [CACHE_VALUE] = PY__value,
    [CACHE_KEY_SCALE] = PY__key_scale,
    [CACHE_VALUE_SCALE] = PY__value_scale,
    [CACHED_LENGTHS] = PY__lengths,
};

/* Replaces an item of a new tuple. Takes the item, which may be NULL after an error. */
static int
put(PyObject *tuple, Py_ssize_t i, PyObject *item)
{
    PyObject *old = PyTuple_GET_ITEM(tuple, i);

    if (item == NULL) {
        return -1;
    }
    PyTuple_SET_ITEM(tuple, i, item);
    Py_DECREF(old);
    return 0;
}

/* Below, 0 means that something is not known here, and -1 an error. */

/* Replaces a norm in a new tuple by its group. */
static int
put_norm(const context *c, PyObject *tuple, Py_ssize_t i)
{
    PyObject *norm = PyTuple_GET_ITEM(tuple, i), *group;
    bool centres = (PyObject *)Py_TYPE(norm) == c->kinds[LAYER_NORM];

    if (norm == Py_None) {
        return 1;
    }
    if (!centres && (PyObject *)Py_TYPE(norm) != c->kinds[RMS_NORM]) {
        return 0;
    }
    group = py_tuple_of(norm, centres ? layer_norm_attributes : rms_norm_attributes,
                        N_NORM);
    return group == NULL ||
                   put(group, NORM_CENTRE, Py_NewRef(centres ? Py_True : Py_False)) <
                       0 ||
                   put(tuple, i, group) < 0
               ? -1
               : 1;
}

/* The same of a norm of tokens, which must not change their dtype. */
static int
put_norm_of_tokens(const context *c, PyObject *tuple, Py_ssize_t i)
{
    int status = put_norm(c, tuple, i), type = py_type_number(c->x);
    PyObject *norm = PyTuple_GET_ITEM(tuple, i);

    if (status <= 0 || norm == Py_None) {
        return status;
    }
    int own = py_type_number(PyTuple_GET_ITEM(norm, NORM_WEIGHT));
    attn_dtype dtype;
    return own == type || (type == NPY_FLOAT && py_storage_of(own, &dtype) &&
                           attn_storage_of(dtype)->bytes == 2);
}

int
py_read_network(PyObject *object, PyObject *gated, PyObject **group)
{
    PyObject *of = py_tuple_of(object, network_attributes, N_NETWORK), *activation;
    int status = of == NULL ? -1 : 1;

    if (status > 0 && PyTuple_GET_ITEM(of, W_GATE) != Py_None) {
        activation = PyDict_GetItemWithError(gated, PyTuple_GET_ITEM(of, ACTIVATION));
        if (activation != NULL) {
            (void)put(of, ACTIVATION, Py_NewRef(activation));
        } else {
            status = PyErr_Occurred() ? -1 : 0;
        }
    }
    if (status <= 0) {
        Py_CLEAR(of);
    }
    *group = of;
    return status;
}

/* Replaces a network by its group. */
static int
put_network(const context *c, PyObject *layer)
{
    PyObject *network = PyTuple_GET_ITEM(layer, NETWORK), *group;
    int status;

    if ((PyObject *)Py_TYPE(network) != c->kinds[FEED_FORWARD]) {
        group = py_type_number(c->x) != NPY_FLOAT
                    ? Py_NewRef(Py_None)
                    : PyObject_CallOneArg(c->kinds[OTHER_NETWORK], network);
        bool is_known = group != Py_None;
        return put(layer, NETWORK, group) < 0 ? -1 : is_known;
    }
    status = py_read_network(network, c->kinds[GATED], &group);
    return status <= 0 ? status : put(layer, NETWORK, group) < 0 ? -1 : 1;
}

/* Replaces an array (B, Hk, capacity, ...) of a cache by its first n tokens, if there is room. */
static int
put_rows(PyObject *cache, Py_ssize_t i, npy_intp n)
{
    PyObject *all = PyTuple_GET_ITEM(cache, i);
    PyArrayObject *rows;

    if (all == Py_None) {
        return 1;
    }
    rows = py_view_of(all);
    if (rows == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (PyArray_NDIM(rows) < 3 || PyArray_DIM(rows, 2) < n) {
        Py_DECREF(rows);
        return 0;
    }
    PyArray_DIMS(rows)[2] = n;
    PyArray_UpdateFlags(rows, NPY_ARRAY_UPDATE_ALL);
    return put(cache, i, (PyObject *)rows) < 0 ? -1 : 1;
}

/* A cache's group: its tokens and those of the call, whose place is that in another cache with the
 * same lengths and sizes of heads. */
static int
read_cache(PyObject *cache, PyObject *const *place, PyObject **group)
{
    PyObject *const *other = py_items(place[PLACE_CACHE], "cache", N_CACHE);
    PyObject *items =
        other == NULL ? NULL : py_tuple_of(cache, cache_attributes, N_CACHED);
    int status = 1;

    if (items == NULL) {
        return -1;
    }
    npy_intp n = py_length_of(other[CACHE_KEY], 4, 2);
    bool fits =
        n >= 0 &&
        py_are_same_integers(PyTuple_GET_ITEM(items, CACHED_LENGTHS), place[PAST]) &&
        py_length_of(PyTuple_GET_ITEM(items, CACHE_KEY), 4, 3) ==
            py_length_of(other[CACHE_KEY], 4, 3);
    for (Py_ssize_t i = 0; fits && status > 0 && i < N_CACHE; i++) {
        status = put_rows(items, i, n);
    }
    if (fits && status > 0) {
        (void)put(items, PAST_LENGTHS, Py_NewRef(place[PAST]));
        *group = PyTuple_GetSlice(items, 0, N_CACHE);
        status = *group == NULL ? -1 : 1;
    }
    Py_DECREF(items);
    return fits ? status : 0;
}

/* A layer's attention as a group. */
static int
read_attention(const context *c, PyObject *mha, PyObject *cache, PyObject *place_group,
               PyObject **group)
{
    PyObject *const *place = py_items(place_group, "place", N_PLACE);
    PyObject *norms, *rows = NULL;
    int status;

    if (place == NULL) {
        return -1;
    }
    if ((PyObject *)Py_TYPE(mha) != c->kinds[MULTI_HEAD_ATTENTION]) {
        return 0;
    }
    static const signed char none[N_ATTENTION] = {PY_NO_ATTRIBUTE};
    *group = py_tuple_of(mha, none, N_ATTENTION);
    if (*group == NULL ||
        put(*group, HEADS, py_tuple_of(mha, heads_attributes, N_HEADS)) < 0 ||
        put(*group, PROJECTIONS,
            py_tuple_of(mha, projection_attributes, N_PROJECTIONS)) < 0 ||
        put(PyTuple_GET_ITEM(*group, PROJECTIONS), MIXED, Py_NewRef(c->mixed)) < 0 ||
        put(*group, ROTARY, Py_NewRef(place[PLACE_ROTARY])) < 0 ||
        put(*group, OPTIONS, Py_NewRef(place[PLACE_OPTIONS])) < 0) {
        return -1;
    }
    norms = py_tuple_of(mha, norms_attributes, N_NORMS);
    if (put(*group, NORMS, norms) < 0) {
        return -1;
    }
    for (int i = Q_NORM; i <= K_NORM; i++) {
        if ((status = put_norm(c, norms, i)) <= 0) {
            return status;
        }
    }
    if (cache != Py_None && (PyObject *)Py_TYPE(cache) != c->kinds[KV_CACHE]) {
        return 0;
    }
    if (cache == Py_None) {
        return put(*group, CACHE, Py_NewRef(place[PLACE_CACHE])) < 0 ? -1 : 1;
    }
    status = read_cache(cache, place, &rows);
    return status > 0 && put(*group, CACHE, rows) < 0 ? -1 : status;
}

/* Is a layer as the core computes it? A parallel one has one norm, which comes first. */
static bool
is_right(PyObject *layer)
{
    PyObject *const *l = &PyTuple_GET_ITEM(layer, 0);

    return l[PARALLEL] == Py_False ||
           (l[PARALLEL] == Py_True && l[NORM_FIRST] == Py_True &&
            l[NORM_1] != Py_None && l[AFTER_1] == Py_None && l[AFTER_3] == Py_None &&
            l[RESIDUAL_SCALE] == Py_None);
}

/* Replaces the scale by an array of the dtype of x. */
static int
put_scale(const context *c, PyObject *layer)
{
    PyObject *scale = PyTuple_GET_ITEM(layer, RESIDUAL_SCALE);
    PyArrayObject *number = NULL;

    if (scale == Py_None) {
        return 0;
    }
    if (py_as_array(scale, "residual_scale", &number) < 0 ||
        py_cast_array(&number, py_type_number(c->x)) < 0) {
        Py_XDECREF(number);
        return -1;
    }
    return put(layer, RESIDUAL_SCALE, (PyObject *)number);
}

/* The items of a layer, in which groups take the places of parts. */
static int
read_parts(const context *c, PyObject *layer, PyObject *cache, PyObject *place)
{
    PyObject *const *l = &PyTuple_GET_ITEM(layer, 0);
    PyObject *attention = NULL;
    int status = read_attention(c, l[ATTENTION], cache, place, &attention);

    if (status <= 0) {
        Py_XDECREF(attention);
        return status;
    }
    if (put(layer, ATTENTION, attention) < 0 || put_scale(c, layer) < 0) {
        return -1;
    }
    for (int i = NORM_1; i <= AFTER_3; i++) {
        if ((status = put_norm_of_tokens(c, layer, i)) <= 0) {
            return status;
        }
    }
    return put_network(c, layer);
}

/* A layer's group. */
static int
read_layer(const context *c, PyObject *object, PyObject *cache, PyObject *place,
           PyObject **group)
{
    PyObject *layer, *const *l;
    int status;

    if ((PyObject *)Py_TYPE(object) != c->kinds[LAYER]) {
        return 0;
    }
    bool of_encoder = c->kinds[OF_ENCODER] == Py_True;
    layer = py_tuple_of(
        object, of_encoder ? encoder_layer_attributes : layer_attributes, N_LAYER);
    if (layer == NULL) {
        return -1;
    }
    if (of_encoder) {
        (void)put(layer, PARALLEL, Py_NewRef(Py_False));
    }
    l = &PyTuple_GET_ITEM(layer, 0);
    status = l[CROSS_ATTENTION] == Py_None && l[NORM_2] == Py_None &&
             PyBool_Check(l[NORM_FIRST]) && is_right(layer);
    status = status ? read_parts(c, layer, cache, place) : 0;
    if (status > 0) {
        *group = PyTuple_GetSlice(layer, 0, N_DECODER_LAYER);
        status = *group == NULL ? -1 : 1;
    }
    Py_DECREF(layer);
    return status;
}

PyDoc_STRVAR(
    read_layers_doc,
    "read_layers(x, layers, caches, places, kinds, mixed, /)\n--\n\nA tuple of an "
    "attnpy._options.DecoderLayer for each layer of a stack, as stack() takes for "
    "tokens "
    "x; "
    "None if one has parts of another kind. Each has a group Place, in a KVCache of "
    "its "
    "own, or None where the place has that. kinds is an attnpy._options.Kinds.");

static PyObject *
read_layers(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments)
{
    enum { X, LAYERS, CACHES, PLACES, KINDS, IS_MIXED, N_ARGUMENTS };
    context c;
    int status = 1;

    (void)module;
    if (py_check_count(n_arguments, N_ARGUMENTS, N_ARGUMENTS) < 0 ||
        py_parse_flag(arguments[IS_MIXED], "mixed") < 0) {
        return NULL;
    }
    c = (context){.x = arguments[X],
                  .mixed = arguments[IS_MIXED],
                  .kinds = py_items(arguments[KINDS], "kinds", N_KINDS)};
    if (c.kinds == NULL) {
        return NULL;
    }
    for (int i = LAYERS; i <= PLACES; i++) {
        if (!PyTuple_Check(arguments[i]) ||
            PyTuple_GET_SIZE(arguments[i]) != PyTuple_GET_SIZE(arguments[PLACES])) {
            PyErr_SetString(
                PyExc_TypeError,
                "layers: expected tuples of one length with caches, places");
            return NULL;
        }
    }
    if (!PyArray_CheckExact(c.x) || !PyDict_Check(c.kinds[GATED])) {
        PyErr_SetString(PyExc_TypeError, "x: expected an array, and a dict in kinds");
        return NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(arguments[LAYERS]);
    PyObject *groups = PyTuple_New(n);
    for (Py_ssize_t i = 0; groups != NULL && i < n && status > 0; i++) {
        PyObject *group = NULL;
        status = read_layer(&c, PyTuple_GET_ITEM(arguments[LAYERS], i),
                            PyTuple_GET_ITEM(arguments[CACHES], i),
                            PyTuple_GET_ITEM(arguments[PLACES], i), &group);
        if (status > 0) {
            PyTuple_SET_ITEM(groups, i, group);
        }
    }
    if (status <= 0) {
        Py_CLEAR(groups);
    }
    return status == 0 ? Py_NewRef(Py_None) : groups;
}

PyMethodDef py_read_layers_methods[] = {
    {"read_layers", PY_FUNCTION(read_layers), METH_FASTCALL, read_layers_doc},
    {NULL, NULL, 0, NULL},
};
