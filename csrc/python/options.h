/* The tuples of arguments that the module's functions take. They are those of
 * attnpy/_options.py, field by field; a test compares both. */
#ifndef ATTN_PYTHON_OPTIONS_H
#define ATTN_PYTHON_OPTIONS_H

#include "python/binding.h"

#include "core/attention.h"

/* clang-format off */
enum { /* Options: attention's arguments besides query, key and value */
    MASK, BIAS, CAUSAL, WINDOW, Q_OFFSET, KV_LENGTHS, KEY_SCALE, VALUE_SCALE,
    SEQ_OFFSETS, PAGE_TABLE, SCALE, SOFTCAP, SINKS, DROPOUT, DROPOUT_SEED,
    RETURN_WEIGHTS, RETURN_LSE, OUT, NUM_THREADS, TIER, N_OPTIONS
};
enum { VJP_OUTPUT, VJP_LSE, VJP_GRAD_LSE, WANTED, N_VJP };         /* VJP */
enum { NUM_HEADS, NUM_KV_HEADS, WEIGHT_GROUPS, N_HEADS };           /* Heads */
enum {                                                              /* Projections */
    W_Q, B_Q, W_K, B_K, W_V, B_V, W_O, B_O, RESIDUAL, MIXED, VALUE_CONTEXT,
    N_PROJECTIONS
};
enum { NORM_WEIGHT, NORM_BIAS, NORM_EPS, NORM_CENTRE, N_NORM };     /* Norm */
enum { Q_NORM, K_NORM, X_NORM, N_NORMS };                           /* Norms */
enum { W_1, B_1, W_GATE, B_GATE, W_2, B_2, ACTIVATION, N_NETWORK }; /* Network */
enum {                                                              /* Experts */
    ROUTER, ROUTER_BIAS, NETWORKS, SHARED, SHARED_GATE, PER_TOKEN, RENORMALIZE, OF_EXPERTS,
    N_EXPERTS
};
enum { NETWORK_KIND, NETWORK_GATED, SOFTMAX, N_EXPERT_KINDS };      /* ExpertKinds */
enum { Q_COS_SIN, K_COS_SIN, INTERLEAVED, N_ROTARY };               /* Rotary */
enum {                                                              /* Cache */
    CACHE_KEY, CACHE_VALUE, PAST_LENGTHS, CACHE_KEY_SCALE, CACHE_VALUE_SCALE, N_CACHE
};
enum { RECEIVED, ENTROPY, DISTANCE, TOP_K, N_WANTED };              /* Wanted */
enum { HEADS, PROJECTIONS, NORMS, ROTARY, CACHE, OPTIONS, N_ATTENTION }; /* Attention */
enum {                                                              /* DecoderLayer */
    ATTENTION, NETWORK, NORM_FIRST, PARALLEL, RESIDUAL_SCALE, NORM_1, NORM_3, AFTER_1,
    AFTER_3, N_DECODER_LAYER
};
enum { PLACE_CACHE, PLACE_ROTARY, PLACE_OPTIONS, PAST, RESERVED, N_PLACE }; /* Place */
enum {                                                              /* Kinds */
    LAYER, OF_ENCODER, MULTI_HEAD_ATTENTION, FEED_FORWARD, LAYER_NORM, RMS_NORM,
    KV_CACHE, GATED, OTHER_NETWORK, N_KINDS
};
/* clang-format on */

/* The n items of a group, borrowed; NULL and an error if it is not such a tuple. */
PyObject *const *py_items(PyObject *group, const char *name, Py_ssize_t n);

/* Options that are no arrays. */
typedef struct {
    bool has_scale;
    double scale;
    bool return_weights, return_lse;
    PyObject *out; /* borrowed; may be None */
    int n_threads;
    const struct attn_tier *tier;
} py_options;

int py_parse_options(PyObject *const *options, attn_problem *, py_options *);
/* Converts scale and softcap to the arithmetic's dtype, in which they must be finite,
 * too. */
int py_set_scale(attn_problem *, const py_options *);

extern PyMethodDef py_options_methods[];

#endif
