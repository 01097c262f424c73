/* layer(): attention with its projections, in one run of the core. */
#ifndef ATTN_PYTHON_LAYER_H
#define ATTN_PYTHON_LAYER_H

#include "python/attention.h"
#include "python/linear.h"
#include "python/norm.h"

#include "core/layer.h"

enum { N_PARTS = 3 }; /* queries, keys, values */

/* The steps of one part from tokens to attention. The arrays are owned; NULL for none. */
typedef struct {
    py_linear_arrays arrays;  /* no input: nothing is projected */
    PyArrayObject *projected; /* (..., heads, L, size), a token's heads adjacent */
    py_norm norm;
    PyArrayObject *cos_sin;
    PyArrayObject *cache;  /* (B, heads, Lk, size) */
    PyArrayObject *scales; /* (B, heads, Lk) of a cache of int8 */
    PyArrayObject *result; /* what attention reads */
    char *codes;           /* in place of it; or NULL */
    int type;              /* of the heads after norm and rotation */
    attn_linear_problem linear;
    attn_norm_problem norm_problem;
    attn_rotary_problem rotary;
} projection;

/* One piece of memory for all projections. malloc would return several pieces to the
 * system after each call, and new pages take a fifth of a layer's time. */
typedef struct {
    PyArrayObject *bytes;
    npy_intp used;
} arena;

/* A call's converted arguments, and what is made of them. */
typedef struct {
    PyObject *residual; /* borrowed: in a stack that of the call; else NULL */
    int64_t n_heads[N_PARTS];
    bool own_keys; /* of the tokens themselves */
    bool codes;    /* attention multiplies keys and values as codes of 16 bits */
    bool mixed; /* heads have the dtype of the weights, the result that of arithmetic */
    projection parts[N_PARTS];
    arena arena;
    py_attention_arrays attention;
    py_linear_arrays arrays;     /* of the last product; no input: there is none */
    PyArrayObject *past_lengths; /* how many tokens are in the cache before the call */
    PyArrayObject *concat;       /* (..., L, H * Dv) */
    PyArrayObject *output;
    attn_problem problem;
    attn_rotary_problem results; /* of the heads, before the last product */
    py_options options;
    int n_awake; /* as in an attn_call */
    attn_linear_problem linear;
    attn_layer_problem layer;
} layer_call;

/* layer_arguments.c: converts tokens, a context or None, and the items of a group Attention. */
int py_convert_layer(PyObject *x, PyObject *context, PyObject *const *groups,
                     layer_call *);
void py_release_layer(layer_call *);

/* layer_heads.c: everything up to the queries, keys and values of attention. Returns the type of its
 * result, or -1. */
int py_set_heads(layer_call *);

PyArrayObject *py_make_heads(PyArrayObject *tokens, npy_intp n_heads, npy_intp size,
                             int type, void *data);
void py_describe_codes(const projection *, attn_array *codes, attn_array *scale);
int py_readable(int own, int type);

/* layer_cache.c: new tokens in a cache. */
npy_intp py_cached_sequences(const layer_call *, const PyArrayObject *cache);
int py_set_cached_result(const layer_call *, projection *, const char *name, int type);
int py_check_places(const layer_call *);
int py_cache_tokens(const layer_call *, const projection *);

/* What layer() returns. In a stack a residual that is not NULL, but may be None, is in the place of
 * that of the projections; NULL without an error says that tables of positions, which layers
 * share there, are not in the precision of this one. `n_awake` is an attn_call's. */
PyObject *py_layer(PyObject *x, PyObject *context, PyObject *const *groups,
                   PyObject *residual, int *n_awake);
extern PyMethodDef py_layer_methods[];

#endif
