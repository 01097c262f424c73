/* The groups of arguments, and attention's options that are not arrays. */
#include "python/options.h"

#include "core/cpu.h"
#include "python/numbers.h"
#include "python/objects.h"
#include "python/settings.h"

static const char *const option_names[] = {
    [MASK] = "mask",
    [BIAS] = "bias",
    [CAUSAL] = "causal",
    [WINDOW] = "window",
    [Q_OFFSET] = "q_offset",
    [KV_LENGTHS] = "kv_lengths",
    [KEY_SCALE] = "key_scale",
    [VALUE_SCALE] = "value_scale",
    [SEQ_OFFSETS] = "seq_offsets",
    [PAGE_TABLE] = "page_table",
    [SCALE] = "scale",
    [SOFTCAP] = "softcap",
    [SINKS] = "sinks",
    [DROPOUT] = "dropout",
    [DROPOUT_SEED] = "dropout_seed",
    [RETURN_WEIGHTS] = "return_weights",
    [RETURN_LSE] = "return_lse",
    [OUT] = "out",
    [NUM_THREADS] = "num_threads",
    [TIER] = "tier",
    [N_OPTIONS] = NULL,
};
static const char *const vjp_names[] = {[VJP_OUTPUT] = "output",
                                        [VJP_LSE] = "lse",
                                        [VJP_GRAD_LSE] = "grad_lse",
                                        [WANTED] = "wanted",
                                        [N_VJP] = NULL};
static const char *const heads_names[] = {[NUM_HEADS] = "num_heads",
                                          [NUM_KV_HEADS] = "num_kv_heads",
                                          [WEIGHT_GROUPS] = "weight_groups",
                                          [N_HEADS] = NULL};
static const char *const projection_names[] = {
    [W_Q] = "W_q",
    [B_Q] = "b_q",
    [W_K] = "W_k",
    [B_K] = "b_k",
    [W_V] = "W_v",
    [B_V] = "b_v",
    [W_O] = "W_o",
    [B_O] = "b_o",
    [RESIDUAL] = "residual",
    [MIXED] = "mixed",
    [VALUE_CONTEXT] = "value_context",
    [N_PROJECTIONS] = NULL,
};
static const char *const norm_names[] = {[NORM_WEIGHT] = "weight",
                                         [NORM_BIAS] = "bias",
                                         [NORM_EPS] = "eps",
                                         [NORM_CENTRE] = "centre",
                                         [N_NORM] = NULL};
static const char *const norms_names[] = {
    [Q_NORM] = "q_norm", [K_NORM] = "k_norm", [X_NORM] = "x_norm", [N_NORMS] = NULL};
static const char *const network_names[] = {
    [W_1] = "W_1", [B_1] = "b_1", [W_GATE] = "W_gate",         [B_GATE] = "b_gate",
    [W_2] = "W_2", [B_2] = "b_2", [ACTIVATION] = "activation", [N_NETWORK] = NULL};
static const char *const experts_names[] = {[ROUTER] = "router",
                                            [ROUTER_BIAS] = "router_bias",
                                            [NETWORKS] = "networks",
                                            [SHARED] = "shared",
                                            [SHARED_GATE] = "shared_gate",
                                            [PER_TOKEN] = "per_token",
                                            [RENORMALIZE] = "renormalize",
                                            [OF_EXPERTS] = "kinds",
                                            [N_EXPERTS] = NULL};
static const char *const expert_kinds_names[] = {[NETWORK_KIND] = "feed_forward",
                                                 [NETWORK_GATED] = "gated",
                                                 [SOFTMAX] = "softmax",
                                                 [N_EXPERT_KINDS] = NULL};
static const char *const rotary_names[] = {[Q_COS_SIN] = "q_cos_sin",
                                           [K_COS_SIN] = "k_cos_sin",
                                           [INTERLEAVED] = "interleaved",
                                           [N_ROTARY] = NULL};
static const char *const cache_names[] = {[CACHE_KEY] = "key",
                                          [CACHE_VALUE] = "value",
                                          [PAST_LENGTHS] = "past_lengths",
                                          [CACHE_KEY_SCALE] = "key_scale",
                                          [CACHE_VALUE_SCALE] = "value_scale",
                                          [N_CACHE] = NULL};
static const char *const wanted_names[] = {[RECEIVED] = "received",
                                           [ENTROPY] = "entropy",
                                           [DISTANCE] = "distance",
                                           [TOP_K] = "top_k",
                                           [N_WANTED] = NULL};
static const char *const attention_names[] = {
    [HEADS] = "heads",   [PROJECTIONS] = "projections",
    [NORMS] = "norms",   [ROTARY] = "rotary",
    [CACHE] = "cache",   [OPTIONS] = "options",
    [N_ATTENTION] = NULL};
static const char *const decoder_layer_names[] = {[ATTENTION] = "attention",
                                                  [NETWORK] = "network",
                                                  [NORM_FIRST] = "norm_first",
                                                  [PARALLEL] = "parallel",
                                                  [RESIDUAL_SCALE] = "residual_scale",
                                                  [NORM_1] = "norm_1",
                                                  [NORM_3] = "norm_3",
                                                  [AFTER_1] = "after_1",
                                                  [AFTER_3] = "after_3",
                                                  [N_DECODER_LAYER] = NULL};
static const char *const place_names[] = {
    [PLACE_CACHE] = "cache", [PLACE_ROTARY] = "rotary", [PLACE_OPTIONS] = "options",
    [PAST] = "past",         [RESERVED] = "reserved",   [N_PLACE] = NULL};
static const char *const kinds_names[] = {[LAYER] = "layer",
                                          [OF_ENCODER] = "of_encoder",
                                          [MULTI_HEAD_ATTENTION] =
                                              "multi_head_attention",
                                          [FEED_FORWARD] = "feed_forward",
                                          [LAYER_NORM] = "layer_norm",
                                          [RMS_NORM] = "rms_norm",
                                          [KV_CACHE] = "kv_cache",
                                          [GATED] = "gated",
                                          [OTHER_NETWORK] = "other_network",
                                          [N_KINDS] = NULL};

PyObject *const *
py_items(PyObject *group, const char *name, Py_ssize_t n)
{
    if (PyTuple_Check(group) && PyTuple_GET_SIZE(group) == n) {
        return &PyTuple_GET_ITEM(group, 0);
    }
    PyErr_Format(PyExc_TypeError, "%s: expected a tuple of %zd, got %R", name, n,
                 group);
    return NULL;
}

static int
parse_causal(PyObject *object, attn_problem *p)
{
    if (PyUnicode_Check(object)) {
        p->causal = true;
        p->top_left = PyUnicode_CompareWithASCIIString(object, "top_left") == 0;
        if (p->top_left ||
            PyUnicode_CompareWithASCIIString(object, "bottom_right") == 0) {
            return 0;
        }
        PyErr_Format(
            PyExc_ValueError,
            "causal: expected False, True, 'bottom_right' or 'top_left', got %R",
            object);
        return -1;
    }
    if (!PyBool_Check(object) && !PyArray_IsScalar(object, Bool)) {
        PyErr_Format(
            PyExc_TypeError,
            "causal: expected False, True, 'bottom_right' or 'top_left', got %s",
            Py_TYPE(object)->tp_name);
        return -1;
    }
    p->causal = PyObject_IsTrue(object);
    return 0;
}

/* One side of a window: None is -1, unbounded; so are numbers beyond int64. */
static int
parse_window_side(PyObject *object, int64_t *side)
{
    int overflow;

    *side = -1;
    if (object == Py_None) {
        return 0;
    }
    if (py_parse_integer(object, "window", side, &overflow) < 0) {
        return -1;
    }
    if (overflow > 0) {
        *side = -1;
        return 0;
    }
    if (*side < 0) {
        PyErr_Format(PyExc_ValueError,
                     "window: expected sides of at least 0, or None, got %R", object);
        return -1;
    }
    return 0;
}

static int
parse_window(PyObject *object, attn_problem *p)
{
    PyObject *sides;
    int is_pair, status = -1;

    p->window_left = p->window_right = -1;
    if (object == Py_None) {
        return 0;
    }
    is_pair = PySequence_Check(object) && !PyUnicode_Check(object) &&
              !PyBytes_Check(object); /* a set has no order */
    sides = is_pair ? PySequence_Tuple(object) : NULL;
    if (sides == NULL) {
        if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "window: expected (left, right), got %s",
                         Py_TYPE(object)->tp_name);
        }
        return -1;
    }
    if (PyTuple_GET_SIZE(sides) != 2) {
        PyErr_Format(PyExc_ValueError, "window: expected (left, right), got %R",
                     object);
        goto done;
    }
    if (parse_window_side(PyTuple_GET_ITEM(sides, 0), &p->window_left) == 0 &&
        parse_window_side(PyTuple_GET_ITEM(sides, 1), &p->window_right) == 0) {
        status = 0;
    }
done:
    Py_DECREF(sides);
    return status;
}

static int
parse_softcap(PyObject *object, double *softcap)
{
    *softcap = 0;
    if (object == Py_None) {
        return 0;
    }
    if (py_parse_number(object, "softcap", softcap) < 0) {
        return -1;
    }
    if (*softcap <= 0) {
        PyErr_Format(PyExc_ValueError, "softcap: expected a finite number > 0, got %R",
                     object);
        return -1;
    }
    return 0;
}

/* A seed is any unsigned integer of 64 bits; dropout requires one. */
static int
parse_dropout(PyObject *dropout, PyObject *seed, attn_problem *p)
{
    PyObject *index;

    p->dropout_seed = 0;
    if (py_parse_number(dropout, "dropout", &p->dropout) < 0) {
        return -1;
    }
    if (!(p->dropout >= 0 && p->dropout < 1)) {
        PyErr_Format(PyExc_ValueError,
                     "dropout: expected a number of at least 0 and below 1, got %R",
                     dropout);
        return -1;
    }
    if (seed == Py_None) {
        if (p->dropout > 0) {
            PyErr_SetString(PyExc_ValueError, "dropout_seed: expected an integer "
                                              "where there is dropout, got None");
        }
        return p->dropout > 0 ? -1 : 0;
    }
    index = py_as_index(seed, "dropout_seed");
    if (index == NULL) {
        return -1;
    }
    p->dropout_seed = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    if (PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError,
                     "dropout_seed: expected an integer from 0 to 2**64 - 1, got %R",
                     seed);
        return -1;
    }
    return 0;
}

int
py_parse_options(PyObject *const *options, attn_problem *p, py_options *o)
{
    int return_weights = py_parse_flag(options[RETURN_WEIGHTS], "return_weights");
    int return_lse =
        return_weights < 0 ? -1 : py_parse_flag(options[RETURN_LSE], "return_lse");

    if (return_lse < 0 || parse_causal(options[CAUSAL], p) < 0 ||
        parse_window(options[WINDOW], p) < 0 ||
        py_parse_tier(options[TIER], &o->tier) < 0) {
        return -1;
    }
    o->return_weights = return_weights;
    o->return_lse = return_lse;
    o->out = options[OUT];
    o->has_scale = options[SCALE] != Py_None;
    if ((o->has_scale && py_parse_number(options[SCALE], "scale", &o->scale) < 0) ||
        parse_softcap(options[SOFTCAP], &p->softcap) < 0 ||
        parse_dropout(options[DROPOUT], options[DROPOUT_SEED], p) < 0) {
        return -1;
    }
    return py_threads_or_default(options[NUM_THREADS], &o->n_threads);
}

/* A number rounded to the arithmetic's dtype, in the default mode whatever the caller's is. */
static double
rounded(double x, attn_dtype arithmetic)
{
    uint32_t control_word = attn_fp_control_reset();
    volatile float single = (float)x;

    attn_fp_control_restore(control_word);
    return arithmetic == ATTN_F64 ? x : (double)single;
}

static double
default_scale(ptrdiff_t head_dim)
{
    uint32_t control_word = attn_fp_control_reset();
    volatile double scale = head_dim > 0 ? 1 / sqrt((double)head_dim) : 1;

    attn_fp_control_restore(control_word);
    return scale;
}

int
py_set_scale(attn_problem *p, const py_options *o)
{
    bool capped = p->softcap > 0;

    p->scale =
        rounded(o->has_scale ? o->scale : default_scale(p->head_dim), p->arithmetic);
    p->softcap = rounded(p->softcap, p->arithmetic);
    if (!isfinite(p->scale)) {
        PyErr_SetString(PyExc_ValueError, "scale: expected a number that is finite in "
                                          "float32, got a larger one");
        return -1;
    }
    if (capped && !(p->softcap > 0 && isfinite(p->softcap))) {
        PyErr_SetString(PyExc_ValueError,
                        "softcap: expected a number that is finite and "
                        "> 0 in float32, too");
        return -1;
    }
    return 0;
}

static int
add_group(PyObject *groups, const char *name, const char *const *fields)
{
    PyObject *list = PyList_New(0);
    int status = list == NULL ? -1 : 0;

    for (int i = 0; status == 0 && fields[i] != NULL; i++) {
        PyObject *field = PyUnicode_FromString(fields[i]);
        status = field == NULL ? -1 : PyList_Append(list, field);
        Py_XDECREF(field);
    }
    status = status < 0 ? -1 : PyDict_SetItemString(groups, name, list);
    Py_XDECREF(list);
    return status;
}

PyDoc_STRVAR(groups_doc,
             "groups()\n--\n\nThe fields of each group of arguments, as this "
             "module has them: see attnpy/_options.py.");

static PyObject *
groups(PyObject *module, PyObject *unused)
{
    PyObject *all = PyDict_New();

    (void)module, (void)unused;
    if (all == NULL || add_group(all, "Options", option_names) < 0 ||
        add_group(all, "VJP", vjp_names) < 0 ||
        add_group(all, "Heads", heads_names) < 0 ||
        add_group(all, "Projections", projection_names) < 0 ||
        add_group(all, "Norm", norm_names) < 0 ||
        add_group(all, "Norms", norms_names) < 0 ||
        add_group(all, "Network", network_names) < 0 ||
        add_group(all, "ExpertKinds", expert_kinds_names) < 0 ||
        add_group(all, "Experts", experts_names) < 0 ||
        add_group(all, "Rotary", rotary_names) < 0 ||
        add_group(all, "Cache", cache_names) < 0 ||
        add_group(all, "Wanted", wanted_names) < 0 ||
        add_group(all, "Attention", attention_names) < 0 ||
        add_group(all, "DecoderLayer", decoder_layer_names) < 0 ||
        add_group(all, "Place", place_names) < 0 ||
        add_group(all, "Kinds", kinds_names) < 0) {
        Py_CLEAR(all);
    }
    return all;
}

PyMethodDef py_options_methods[] = {
    {"groups", groups, METH_NOARGS, groups_doc},
    {NULL, NULL, 0, NULL},
};
